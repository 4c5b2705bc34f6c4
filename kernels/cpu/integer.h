// Products of quantised weights with rows rounded to int8: sums of a group are integers and thus
// exact in any order; groups are added as floats in order of k. So the bits of an output depend on
// its row and its column alone, and tests compare them with an integer reference bit by bit.
//
// A row's group of 32 has the scale max|x| / 127 and codes x * (127 / max|x|), ties to even.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "tile.h"

namespace ygg {

// As many rows as accumulators fit the registers beside the codes of one piece.
#if defined(__AVX512F__)
constexpr int kMaxIntegerRows = 16;
#elif defined(__aarch64__)
constexpr int kMaxIntegerRows = 12;
#else
constexpr int kMaxIntegerRows = 4;
#endif

// One group of R rows, in 4-byte words: codes (four neighbours in k a word), scales [R], scale
// times the sum of the codes [R], sums of the codes of each half [2][R]. Codes lie as their reader
// takes them: vectors [8][R], a word of all rows after another; tile registers [R][8], row by row.
constexpr int kCodeWords = 8;
constexpr int kGroupWords = 12;
constexpr int kScaleWord = 8;
constexpr int kScaledSumWord = 9;
constexpr int kSumWord = 10;

enum class CodeOrder { kByWord, kByRow };

inline std::int64_t quantized_words(std::int64_t num_rows, std::int64_t num_k) {
  return num_rows * (num_k / kPieceK) * kGroupWords;
}

// Group `x` [32] of row `row` of a block of `num_rows` rows.
inline void quantize_group(const float* x, int row, int num_rows, CodeOrder order,
                           std::int32_t* words) {
  vec size = abs(load(x));
  vec probe = mul(load(x), zero());
  for (int i = kLanes; i < kPieceK; i += kLanes) {
    size = max(size, abs(load(x + i)));
    probe = fma(load(x + i), zero(), probe);
  }
  const float largest = largest_lane(size);
  // If any value is none or infinite the row's results become NaN, as with floats.
  const bool broken = has_nan(probe);
  const float scale = broken ? std::numeric_limits<float>::quiet_NaN() : largest / 127.0f;
  // Values so small that this is infinite count as zero.
  float inverse = largest > 0.0f && !broken ? 127.0f / largest : 0.0f;
  if (!(inverse <= std::numeric_limits<float>::max())) inverse = 0.0f;
  std::int8_t codes[kPieceK] = {};
  std::int32_t sums[2] = {0, 0};
  if (inverse > 0.0f) {
    for (int i = 0; i < kPieceK; i += kLanes) {
      const ivec rounded = to_int(mul(load(x + i), broadcast(inverse)));
      store_bytes(codes + i, rounded);
      sums[i / (kPieceK / 2)] += sum_lanes(rounded);
    }
  }
  const bool by_row = order == CodeOrder::kByRow;
  std::int32_t* target = words + (by_row ? row * kCodeWords : row);
  const int step = by_row ? 1 : num_rows;
  for (int m = 0; m < kCodeWords; ++m) std::memcpy(target + m * step, codes + 4 * m, sizeof *words);
  const float scaled_sum = scale * static_cast<float>(sums[0] + sums[1]);
  std::memcpy(words + kScaleWord * num_rows + row, &scale, sizeof scale);
  std::memcpy(words + kScaledSumWord * num_rows + row, &scaled_sum, sizeof scaled_sum);
  words[kSumWord * num_rows + row] = sums[0];
  words[(kSumWord + 1) * num_rows + row] = sums[1];
}

// Part `part` of `num_parts` of all groups of the rows; block b of the rows lies at
// quantized_words(begin(b), num_k).
inline void quantize_rows(const float* x, std::int64_t num_rows, std::int64_t num_k,
                          CodeOrder order, std::int32_t* words, std::int64_t part,
                          std::int64_t num_parts) {
  const RowBlocks blocks(num_rows, kMaxIntegerRows);
  const std::int64_t num_groups = num_k / kPieceK;
  const std::int64_t first = num_groups * part / num_parts;
  const std::int64_t last = num_groups * (part + 1) / num_parts;
  for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
    const int size = blocks.size(b);
    std::int32_t* block = words + quantized_words(blocks.begin(b), num_k);
    for (int r = 0; r < size; ++r) {
      for (std::int64_t g = first; g < last; ++g) {
        quantize_group(x + (blocks.begin(b) + r) * num_k + g * kPieceK, r, size, order,
                       block + g * kGroupWords * size);
      }
    }
  }
}

// out[r][0..kLanes) = the product of row r of a quantised block with the lanes of vector `v` of a
// panel, over `num_blocks` blocks of weights.
template <int R, class F>
void multiply_integers(const std::int32_t* words, const std::uint8_t* block,
                       std::int64_t num_blocks, int v, float* out, std::int64_t out_stride,
                       const char* ahead) {
  vec acc[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (std::int64_t n = 0; n < num_blocks; ++n) {
    for (int line = 0; line < F::kBytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
    ahead += F::kBytes;
    for (int p = 0; p < F::kGroup / kPieceK; ++p) {
      const ivec codes[8] = {
          F::template codes<0>(block, p, v), F::template codes<1>(block, p, v),
          F::template codes<2>(block, p, v), F::template codes<3>(block, p, v),
          F::template codes<4>(block, p, v), F::template codes<5>(block, p, v),
          F::template codes<6>(block, p, v), F::template codes<7>(block, p, v)};
      float scales[R];
      std::memcpy(scales, words + kScaleWord * R, sizeof scales);
#pragma GCC unroll 2
      for (int s = 0; s < F::kSubgroups; ++s) {
        constexpr int count = 8 / F::kSubgroups;
        const vec scale = F::scale(block, p, s, v);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          std::int32_t start = 0;
          if constexpr (F::kOffset != 0) {
            start = words[(kSumWord + s) * R + r];
            if constexpr (F::kSubgroups == 1) start += words[(kSumWord + 1) * R + r];
          }
          ivec sum = ibroadcast(-F::kOffset * start);
#pragma GCC unroll 8
          for (int m = 0; m < count; ++m) {
            const ivec x = ibroadcast(words[(s * count + m) * R + r]);
            sum = F::kWide ? add_wide_dot(sum, codes[s * count + m], x)
                           : add_dot(sum, codes[s * count + m], x);
          }
          acc[r] = fma(mul(to_float(sum), broadcast(scales[r])), scale, acc[r]);
        }
      }
      if constexpr (F::kHasMinimum) {
        const vec minimum = F::minimum(block, p, v);
        float sums[R];
        std::memcpy(sums, words + kScaledSumWord * R, sizeof sums);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r] = fma(broadcast(sums[r]), minimum, acc[r]);
      }
      words += kGroupWords * R;
    }
    block += F::kBytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) store(out + r * out_stride, acc[r]);
}

using IntegerFunction = void (*)(const std::int32_t*, const std::uint8_t*, std::int64_t, int,
                                 float*, std::int64_t, const char*);

template <class F, std::size_t... I>
constexpr std::array<IntegerFunction, sizeof...(I)> integer_functions(std::index_sequence<I...>) {
  return {&multiply_integers<static_cast<int>(I) + 1, F>...};
}

// multiply_integers for 1..kMaxIntegerRows rows.
template <class F>
inline IntegerFunction integer_for(int num_rows) {
  static constexpr auto functions =
      integer_functions<F>(std::make_index_sequence<kMaxIntegerRows>{});
  return functions[static_cast<std::size_t>(num_rows - 1)];
}

}  // namespace ygg
