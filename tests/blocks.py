"""Random matrices in GGUF's blocks, for every format that the operators read."""

from __future__ import annotations

import gguf
import numpy as np

from yggrt.core.formats import FORMATS

QUANTISED = [name for name, form in FORMATS.items() if form.is_quantised]
# Where the float16 scales of a block lie.
_SCALES = {"q6_k": (208,), "q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2)}


def random_blocks(name: str, num_rows: int, num_columns: int, seed: int = 0) -> np.ndarray:
    """Rows of blocks with all codes and 6-bit scales random, uint8 [num_rows, bytes]."""
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
    blocks = rng.integers(0, 256, (num_rows * num_columns // block, size), dtype=np.uint8)
    # Values of about a tenth, whatever a block's own scales multiply.
    spread = {"q4_k": 2e-4, "q5_k": 1e-4, "q6_k": 1e-4, "q8_0": 1e-3}.get(name, 1e-2)
    for at in _SCALES.get(name, (0,)):
        scales = rng.normal(0, spread, (len(blocks), 1)).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(num_rows, -1)
