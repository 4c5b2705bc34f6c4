// y = x W^T + b for weights packed in panels [ceil(N/16)][K][16], float32 or bfloat16.
// Accumulation order, never to change: K in chunks of 256, each summed from zero in order of k, the chunk sums added in
// order, then the bias. The panels of a block stay in cache while all rows pass over them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tile.h"

namespace ygg {

constexpr std::int64_t kChunkK = 256;

struct LinearWeight {
  const void* panels;  // [ceil(num_outputs / 16)][K][16], zero padded
  const float* bias;   // [num_outputs] or null
  float* out;          // [num_rows][num_outputs]
  std::int64_t num_outputs;
  bool is_bf16;

  std::int64_t num_panels() const { return (num_outputs + kPanel - 1) / kPanel; }
};

// Floats that linear_panels needs of scratch, per thread.
inline std::int64_t linear_scratch_floats(std::int64_t num_rows) {
  return num_rows * kTilePanels * kPanel;
}

// Part `part` of `num_parts` of the transposed row blocks: block b lies at packed + begin(b) * num_k as [num_k][size].
// The split is by row, so that any number of threads shares a single block.
inline void pack_rows(const float* x, std::int64_t num_rows, std::int64_t num_k, float* packed,
                      std::int64_t part, std::int64_t num_parts) {
  const RowBlocks blocks(num_rows);
  const std::int64_t k_begin = num_k * part / num_parts;
  const std::int64_t k_end = num_k * (part + 1) / num_parts;
  for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
    const int size = blocks.size(b);
    pack_block(x + blocks.begin(b) * num_k + k_begin, num_k, size, k_end - k_begin,
               packed + blocks.begin(b) * num_k + k_begin * size);
  }
}

template <int P, class T>
void multiply_panels(const float* packed, const RowBlocks& blocks, std::int64_t num_k,
                     const LinearWeight& weight, std::int64_t panel, float* total) {
  constexpr std::int64_t kWidth = P * kPanel;
  const T* panels = static_cast<const T*>(weight.panels) + panel * num_k * kPanel;
  for (std::int64_t k = 0; k < num_k; k += kChunkK) {
    const std::int64_t count = std::min(kChunkK, num_k - k);
    for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
      const int size = blocks.size(b);
      tile_for<P, T>(size)(packed + blocks.begin(b) * num_k + k * size, panels + k * kPanel,
                           num_k * kPanel, count, total + blocks.begin(b) * kWidth, kWidth,
                           k > 0);
    }
  }
  const std::int64_t first = panel * kPanel;
  const std::int64_t width = std::min(kWidth, weight.num_outputs - first);
  for (std::int64_t r = 0; r < blocks.num_rows; ++r) {
    float* out = weight.out + r * weight.num_outputs + first;
    for (std::int64_t c = 0; c < width; c += kLanes) {
      const int lanes = static_cast<int>(std::min<std::int64_t>(kLanes, width - c));
      vec sum = load(total + r * kWidth + c);
      if (weight.bias != nullptr) sum = add(sum, load_first(weight.bias + first + c, lanes));
      store_first(out + c, sum, lanes);
    }
  }
}

template <class T>
void multiply_range(const float* packed, const RowBlocks& blocks, std::int64_t num_k,
                    const LinearWeight& weight, std::int64_t begin, std::int64_t end,
                    float* total) {
  std::int64_t panel = begin;
  for (; panel + kTilePanels <= end; panel += kTilePanels) {
    multiply_panels<kTilePanels, T>(packed, blocks, num_k, weight, panel, total);
  }
  for (; panel < end; ++panel) {
    multiply_panels<1, T>(packed, blocks, num_k, weight, panel, total);
  }
}

// Part `part` of `num_parts` of all panels of all weights. `packed` is pack_rows' result (for one row: x itself);
// `total` is scratch of linear_scratch_floats(num_rows).
inline void linear_panels(const float* packed, std::int64_t num_rows, std::int64_t num_k,
                          const LinearWeight* weights, std::int64_t num_weights, float* total,
                          std::int64_t part, std::int64_t num_parts) {
  if (num_rows == 0) return;
  const RowBlocks blocks(num_rows);
  std::int64_t num_panels = 0;
  for (std::int64_t i = 0; i < num_weights; ++i) num_panels += weights[i].num_panels();
  const std::int64_t begin = num_panels * part / num_parts;
  const std::int64_t end = num_panels * (part + 1) / num_parts;
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < num_weights; ++i) {
    const std::int64_t count = weights[i].num_panels();
    const std::int64_t first = std::clamp<std::int64_t>(begin - offset, 0, count);
    const std::int64_t last = std::clamp<std::int64_t>(end - offset, 0, count);
    if (weights[i].is_bf16) {
      multiply_range<bf16>(packed, blocks, num_k, weights[i], first, last, total);
    } else {
      multiply_range<float>(packed, blocks, num_k, weights[i], first, last, total);
    }
    offset += count;
  }
}

}  // namespace ygg
