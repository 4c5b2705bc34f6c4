// y = x W^T + b for weights packed in panels [ceil(N/16)][K][16], float32 or bfloat16.
// Accumulation order, never to change: K in chunks of 256, each summed from zero in order of k,
// the chunk sums added in order, then the bias. The panels of a block stay in cache while all rows
// pass over them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tile.h"

namespace ygg {

constexpr std::int64_t kChunkK = 256;
// Weights are asked for this many steps of k before they are used: 32 KB of float32, past any page
// boundary.
constexpr std::int64_t kAheadK = 512;
// Up to this many rows, two chunks are summed side by side.
constexpr int kPairRows = std::min(4, kMaxTileRows / 2);

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
  return num_rows * kPanel;
}

// Part `part` of `num_parts` of the transposed row blocks: block b lies at packed + begin(b) *
// num_k as [num_k][size]. The split is by row, so that any number of threads shares a single
// block.
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

// total[r] = total[r] + first chunk's sum + second chunk's sum, in this order; two chunks at once
// hide the latency of the additions when there are few rows.
template <class T>
void multiply_chunk_pair(const float* x, int num_rows, const T* chunk, float* total,
                         bool accumulate) {
  float sums[kPairRows * 2 * kPanel];
  tile_for<2, T>(num_rows)(x, kChunkK * num_rows, chunk, kChunkK * kPanel, kChunkK, sums,
                           2 * kPanel, false,
                           {reinterpret_cast<const char*>(chunk + kAheadK * kPanel),
                            static_cast<std::int64_t>(kPanel * sizeof(T))});
  for (int r = 0; r < num_rows; ++r) {
    for (int c = 0; c < kPanel; c += kLanes) {
      const vec first = load(sums + r * 2 * kPanel + c);
      const vec second = load(sums + r * 2 * kPanel + kPanel + c);
      const vec sum = accumulate ? add(load(total + r * kPanel + c), first) : first;
      store(total + r * kPanel + c, add(sum, second));
    }
  }
}

template <class T>
void multiply_panel(const float* packed, const RowBlocks& blocks, std::int64_t num_k,
                    const LinearWeight& weight, std::int64_t panel, float* total) {
  const T* weights = static_cast<const T*>(weight.panels) + panel * num_k * kPanel;
  std::int64_t k = 0;
  if (blocks.num_rows <= kPairRows) {
    const int num_rows = static_cast<int>(blocks.num_rows);
    for (; k + 2 * kChunkK <= num_k; k += 2 * kChunkK) {
      multiply_chunk_pair(packed + k * num_rows, num_rows, weights + k * kPanel, total, k > 0);
    }
  }
  for (; k < num_k; k += kChunkK) {
    const std::int64_t count = std::min(kChunkK, num_k - k);
    const T* chunk = weights + k * kPanel;
    // The passes over this chunk share the work of fetching what lies ahead.
    const std::int64_t bytes_per_pass = count * kPanel * sizeof(T) / blocks.num_blocks;
    const std::int64_t step_bytes = kPanel * sizeof(T) / blocks.num_blocks;
    for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
      const int size = blocks.size(b);
      const char* ahead =
          reinterpret_cast<const char*>(chunk + kAheadK * kPanel) + b * bytes_per_pass;
      tile_for<1, T>(size)(packed + blocks.begin(b) * num_k + k * size, 0, chunk, 0, count,
                           total + blocks.begin(b) * kPanel, kPanel, k > 0, {ahead, step_bytes});
    }
  }
  const std::int64_t first = panel * kPanel;
  const std::int64_t width = std::min<std::int64_t>(kPanel, weight.num_outputs - first);
  for (std::int64_t r = 0; r < blocks.num_rows; ++r) {
    float* out = weight.out + r * weight.num_outputs + first;
    for (std::int64_t c = 0; c < width; c += kLanes) {
      const int lanes = static_cast<int>(std::min<std::int64_t>(kLanes, width - c));
      vec sum = load(total + r * kPanel + c);
      if (weight.bias != nullptr) sum = add(sum, load_first(weight.bias + first + c, lanes));
      store_first(out + c, sum, lanes);
    }
  }
}

template <class T>
void multiply_range(const float* packed, const RowBlocks& blocks, std::int64_t num_k,
                    const LinearWeight& weight, std::int64_t begin, std::int64_t end,
                    float* total) {
  for (std::int64_t panel = begin; panel < end; ++panel) {
    multiply_panel<T>(packed, blocks, num_k, weight, panel, total);
  }
}

// Part `part` of `num_parts` of all panels of all weights. `packed` is pack_rows' result (for one
// row: x itself); `total` is scratch of linear_scratch_floats(num_rows).
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
