"""What AOTInductor gets to see of the operators: kernels, and what each of them writes."""

from __future__ import annotations

import json
import subprocess
import sys

# In a process of its own: torch's analysis asks triton's active driver for the GPU, and this one
# only names it.
PROGRAM = """
import json, warnings
warnings.simplefilter("ignore")
import torch, triton
from torch._functorch.aot_autograd import aot_export_module
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from triton.backends.compiler import GPUTarget
from ygg_kernels.triton.embed_check import Pass, example_inputs

class Named:
    def get_current_target(self):
        return GPUTarget("cuda", 80, 32)

triton.runtime.driver.set_active(Named())
module, inputs = Pass(), example_inputs()
program = torch.export.export(module, tuple(inputs))
operators = [str(n.target) for n in program.graph.nodes if "ygg_cuda" in str(n.target)]
graph, _ = aot_export_module(program.module(), inputs, trace_joint=False)
calls = [n.kwargs for n in graph.graph.nodes if "triton" in str(n.target)]
kernels = [
    (kernel_side_table.get_kernel(n["kernel_idx"]).fn.__name__, n["tensors_to_clone"])
    for n in calls
]
opaque = [str(n.target) for n in graph.graph.nodes if "ygg_cuda" in str(n.target)]
print(json.dumps([operators, kernels, opaque]))
"""


def test_aot_sees_kernels_and_what_they_write() -> None:
    """A kernel that was thought to write its weights would have them copied at every call."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    operators, kernels, opaque = json.loads(done.stdout.splitlines()[-1])
    assert [name.removeprefix("ygg_cuda.") for name in operators] == [
        "linear_unbiased.default",
        "tree_attention.default",
        "linear_unbiased.default",
        "topk_logsumexp.default",
        "accept.default",
        "kv_commit.default",
    ]
    assert opaque == []
    assert kernels == [
        ["_linear_kernel", ["out"]],
        ["_linear_kernel", ["out"]],
        ["_prefix_kernel", ["partial", "stats"]],
        ["_finish_kernel", ["out"]],
        ["_linear_kernel", ["out"]],
        ["_block_kernel", ["scores", "tokens", "stats"]],
        ["_merge_kernel", ["out_scores", "out_tokens", "out_sums"]],
        ["_accept_kernel", ["path", "count", "bonus"]],
        ["_commit_kernel", ["cache"]],
        ["_commit_kernel", ["cache"]],
    ]
