// The one inner product loop: rows of x times panels of 16 columns, summed over k in order. The
// bits of one output depend on its row, its column and the k range alone, never on the tile's
// shape.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "formats.h"
#include "vec.h"

namespace ygg {

// One panel wide, so that a pass over weights is one stream of memory; as many rows as
// accumulators fit the registers.
#if defined(__AVX512F__)
constexpr int kMaxTileRows = 24;
#else
constexpr int kMaxTileRows = 6;
#endif
// Rows of a tile in which two panels share each value of x: half as many loads a multiplication,
// which counts where one instruction multiplies by 16 weights.
constexpr int kMaxSharedRows = 14;

// A row count split into blocks of at most `largest` rows, sizes as equal as can be.
struct RowBlocks {
  std::int64_t num_rows;
  std::int64_t num_blocks;

  explicit RowBlocks(std::int64_t rows, std::int64_t largest = kMaxTileRows)
      : num_rows(rows), num_blocks((rows + largest - 1) / largest) {}
  std::int64_t begin(std::int64_t block) const { return num_rows * block / num_blocks; }
  int size(std::int64_t block) const { return static_cast<int>(begin(block + 1) - begin(block)); }
};

// Rows [size] of x (row stride given), transposed to [num_k][size].
inline void pack_block(const float* x, std::int64_t row_stride, int size, std::int64_t num_k,
                       float* packed) {
  const std::int64_t squares = size < kSquare ? 0 : num_k / kSquare * kSquare;
  for (std::int64_t k = 0; k < squares; k += kSquare) {
    for (int r = 0; r < size; r += kSquare) {
      // The last square of rows overlaps the one before it instead of leaving a rest.
      const int first = std::min(r, size - kSquare);
      transpose_square(x + first * row_stride + k, row_stride, packed + k * size + first, size);
    }
  }
  for (std::int64_t k = squares; k < num_k; ++k) {
    for (int r = 0; r < size; ++r) packed[k * size + r] = x[r * row_stride + k];
  }
}

// Memory that is wanted soon: every step of k asks for one line of it, of bfloat16 every second.
struct Prefetch {
  const char* address;
  std::int64_t step_bytes;
};

// Of bfloat16 weights two neighbours in k lie side by side (place_in_panel).
//
// out[r][p * 16 + c] = sum over k of x[p][k][r] * w[p][k][c], from zero, in order of k; added to
// `out` if `accumulate`. The P parts of w are [num_k][16] each, `w_stride` elements apart; those
// of x are [num_k][R], `x_stride` apart, or all one if `Shared`.
template <int R, int P, class T, bool Shared = false>
void multiply_tile(const float* x, std::int64_t x_stride, const T* w, std::int64_t w_stride,
                   std::int64_t num_k, float* out, std::int64_t out_stride, bool accumulate,
                   Prefetch ahead) {
  constexpr int kVecs = P * kVecsPerPanel;
  vec acc[R][kVecs];
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) acc[r][v] = zero();
  }
  const auto request = [&] {
#pragma GCC unroll 32
    for (int p = 0; p < P; ++p) {
      __builtin_prefetch(ahead.address + p * w_stride * static_cast<std::int64_t>(sizeof(T)), 0,
                         2);
    }
  };
  const auto step = [&](const vec* weights) {
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
      for (int v = 0; v < kVecs; ++v) {
        const std::int64_t part = Shared ? 0 : (v / kVecsPerPanel) * x_stride;
        acc[r][v] = fma(broadcast(x[part + r]), weights[v], acc[r][v]);
      }
    }
    x += R;
    w += kPanel;
    ahead.address += ahead.step_bytes;
  };
  std::int64_t k = 0;
  if constexpr (sizeof(T) == sizeof(bf16)) {
    for (; k + 2 <= num_k; k += 2) {
      request();
      vec evens[kVecs];
      vec odds[kVecs];
#pragma GCC unroll 32
      for (int v = 0; v < kVecs; ++v) {
        const T* pairs = w + (v / kVecsPerPanel) * w_stride + 2 * (v % kVecsPerPanel) * kLanes;
        evens[v] = load_evens(pairs);
        odds[v] = load_odds(pairs);
      }
      step(evens);
      step(odds);
    }
  }
  for (; k < num_k; ++k) {
    request();
    vec weights[kVecs];
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      weights[v] = load(w + (v / kVecsPerPanel) * w_stride + (v % kVecsPerPanel) * kLanes);
    }
    step(weights);
  }
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      float* target = out + r * out_stride + v * kLanes;
      store(target, accumulate ? add(load(target), acc[r][v]) : acc[r][v]);
    }
  }
}

template <class T>
using TileFunction = void (*)(const float*, std::int64_t, const T*, std::int64_t, std::int64_t,
                              float*, std::int64_t, bool, Prefetch);

template <int P, class T, std::size_t... I>
constexpr std::array<TileFunction<T>, sizeof...(I)> tile_functions(std::index_sequence<I...>) {
  return {&multiply_tile<static_cast<int>(I) + 1, P, T>...};
}

// The tile of P parts for `rows` rows, 1..kMaxTileRows / P.
template <int P, class T>
TileFunction<T> tile_for(int rows) {
  static constexpr auto functions =
      tile_functions<P, T>(std::make_index_sequence<kMaxTileRows / P>{});
  return functions[static_cast<std::size_t>(rows - 1)];
}

template <class T, std::size_t... I>
constexpr std::array<TileFunction<T>, sizeof...(I)> shared_functions(std::index_sequence<I...>) {
  return {&multiply_tile<static_cast<int>(I) + 1, 2, T, true>...};
}

// The tile of two panels that share x, for 1..kMaxSharedRows rows.
template <class T>
TileFunction<T> shared_tile_for(int rows) {
  static constexpr auto functions =
      shared_functions<T>(std::make_index_sequence<kMaxSharedRows>{});
  return functions[static_cast<std::size_t>(rows - 1)];
}

}  // namespace ygg
