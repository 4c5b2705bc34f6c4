// The one inner product loop: rows of x times panels of 16 columns, summed over k in order.
// The bits of one output depend on its row, its column and the k range alone, never on the tile's shape.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "vec.h"

namespace ygg {

constexpr int kPanel = 16;
constexpr int kVecsPerPanel = kPanel / kLanes;

// Registers: rows x panels accumulators, one row of weights, one broadcast.
#if defined(__AVX512F__)
constexpr int kMaxTileRows = 12;
constexpr int kTilePanels = 2;
#else
constexpr int kMaxTileRows = 6;
constexpr int kTilePanels = 1;
#endif

// A row count split into blocks of at most kMaxTileRows rows, sizes as equal as can be.
struct RowBlocks {
  std::int64_t num_rows;
  std::int64_t num_blocks;

  explicit RowBlocks(std::int64_t rows)
      : num_rows(rows), num_blocks((rows + kMaxTileRows - 1) / kMaxTileRows) {}
  std::int64_t begin(std::int64_t block) const { return num_rows * block / num_blocks; }
  int size(std::int64_t block) const { return static_cast<int>(begin(block + 1) - begin(block)); }
};

// Rows [size] of x (row stride given), transposed to [num_k][size].
inline void pack_block(const float* x, std::int64_t row_stride, int size, std::int64_t num_k,
                       float* packed) {
  for (int r = 0; r < size; ++r) {
    const float* row = x + r * row_stride;
    for (std::int64_t k = 0; k < num_k; ++k) packed[k * size + r] = row[k];
  }
}

// out[r][p * 16 + c] (+)= sum over k of x[k][r] * w[p][k][c], from zero, in order of k.
// x is [num_k][R]; panels are `panel_stride` elements apart.
template <int R, int P, class T>
void multiply_tile(const float* x, const T* w, std::int64_t panel_stride, std::int64_t num_k,
                   float* out, std::int64_t out_stride, bool accumulate) {
  constexpr int kVecs = P * kVecsPerPanel;
  vec acc[R][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) acc[r][v] = zero();
  }
  for (std::int64_t k = 0; k < num_k; ++k) {
    vec weights[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      weights[v] = load(w + (v / kVecsPerPanel) * panel_stride + (v % kVecsPerPanel) * kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const vec row = broadcast(x[r]);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) acc[r][v] = fma(row, weights[v], acc[r][v]);
    }
    w += kPanel;
    x += R;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      float* target = out + r * out_stride + v * kLanes;
      store(target, accumulate ? add(load(target), acc[r][v]) : acc[r][v]);
    }
  }
}

template <class T>
using TileFunction = void (*)(const float*, const T*, std::int64_t, std::int64_t, float*,
                              std::int64_t, bool);

template <int P, class T, std::size_t... I>
constexpr std::array<TileFunction<T>, sizeof...(I)> tile_functions(std::index_sequence<I...>) {
  return {&multiply_tile<static_cast<int>(I) + 1, P, T>...};
}

// The tile for `rows` (1..kMaxTileRows) rows and P panels.
template <int P, class T>
TileFunction<T> tile_for(int rows) {
  static constexpr auto functions =
      tile_functions<P, T>(std::make_index_sequence<kMaxTileRows>{});
  return functions[static_cast<std::size_t>(rows - 1)];
}

}  // namespace ygg
