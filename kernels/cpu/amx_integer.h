// Products of quantised weights with rows rounded to int8 on tile registers: the integer sums of a
// group come from them, what follows is that of integer.h, and so are the bits.
//
// Four stages, each a step of two groups behind the next: codes are spread to bytes; tiles
// multiply them; the sums leave the tiles; vectors scale and add them. A tile can be loaded only
// from what stores have left behind in the cache, and leaves its register long after the product
// began, so a stage that waited for the one before it would wait each time.
#pragma once

#include "amx.h"
#include "integer.h"

#if defined(YGG_AMX)

namespace ygg {

// Fewer rows are faster in vectors.
constexpr int kFewestTileRows = 4;
constexpr int kGroupsPerStep = 2;

// Steps by which the first stage is ahead of the last one.
constexpr int kStagesAhead = 3;

static_assert(kMaxIntegerRows == kTileRows);

// Whether the rows of a call are multiplied on tiles, if all quantised weights of it allow that.
inline bool fits_tiles(std::int64_t num_rows, std::int64_t num_k) {
  constexpr std::int64_t step = kGroupsPerStep * kPieceK;
  return num_rows >= kFewestTileRows && num_k % step == 0 && num_k >= kStagesAhead * step;
}

// C += A B over signed bytes.
template <int C, int A, int B>
inline void add_int8_products() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

// Registers of integer products: sums of two groups, rows of two groups, codes of two groups.
inline std::array<TileShape, 8> integer_shapes(int size) {
  const TileShape sums{size, kTileBytes};
  const TileShape rows{size, kPieceK};
  const TileShape codes{kCodeWords, kTileBytes};
  return {{sums, sums, rows, rows, codes, codes, sums, sums}};
}

// Steps whose codes wait for their product.
constexpr int kCodeSteps = 2;
constexpr std::int64_t kStepSums = kGroupsPerStep * kTileRows * kPanel;
constexpr std::int64_t kIntegerScratchFloats =
    kStepSums + kCodeSteps * kGroupsPerStep * kCodes8 / static_cast<std::int64_t>(sizeof(float));

// One panel of weights and one block of rows.
template <class F>
struct IntegerSpan {
  const std::uint8_t* weights;
  const std::int32_t* rows;  // quantize_rows' result, codes by row
  std::int64_t num_rows;

  // The block that holds group `g` of a step, the piece of it, the group's rows.
  const std::uint8_t* block(std::int64_t step, int g) const {
    return weights + (kGroupsPerStep * step + g) / kPieces * F::kBytes;
  }
  static int piece(std::int64_t step, int g) {
    return static_cast<int>((kGroupsPerStep * step + g) % kPieces);
  }
  const std::int32_t* group(std::int64_t step, int g) const {
    return rows + (kGroupsPerStep * step + g) * kGroupWords * num_rows;
  }

 private:
  static constexpr int kPieces = F::kGroup / kPieceK;
};

// Codes of a piece as signed bytes in the order of a tile: lines of four neighbours in k.
template <class F>
[[gnu::always_inline]] inline void spread_codes(const std::uint8_t* block, int piece,
                                                std::uint8_t* out) {
  const auto line = [&](auto m) __attribute__((always_inline)) {
    constexpr int at = decltype(m)::value;
    ivec codes = F::template codes<at>(block, piece, 0);
    if constexpr (F::kOffset != 0) {
      codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(F::kOffset)));
    }
    _mm512_storeu_si512(out + at * kTileBytes, codes);
  };
  line(std::integral_constant<int, 0>{});
  line(std::integral_constant<int, 1>{});
  line(std::integral_constant<int, 2>{});
  line(std::integral_constant<int, 3>{});
  line(std::integral_constant<int, 4>{});
  line(std::integral_constant<int, 5>{});
  line(std::integral_constant<int, 6>{});
  line(std::integral_constant<int, 7>{});
}

// What passes between the stages, in memory that holds kIntegerScratchFloats.
struct IntegerRoom {
  std::int32_t* all_sums;   // [kGroupsPerStep][kTileRows][kPanel]
  std::uint8_t* all_codes;  // [kCodeSteps][kGroupsPerStep][kCodes8]

  std::int32_t* sums(int g) const { return all_sums + g * kTileRows * kPanel; }
  std::uint8_t* codes(std::int64_t turn, int g) const {
    return all_codes + (turn % kCodeSteps * kGroupsPerStep + g) * kCodes8;
  }
};

// Starts the product of group G of a step: `rows` as they lie in its span.
template <int G>
[[gnu::always_inline]] inline void multiply_group(const std::uint8_t* codes,
                                                  const std::int32_t* rows) {
  load_tile<4 + G>(codes, kTileBytes);
  load_tile<2 + G>(rows, kPieceK);
  zero_tile<G>();
  add_int8_products<G, 2 + G, 4 + G>();
}

inline vec broadcast_word(const std::int32_t* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return broadcast(value);
}

// The last stage for group `g` of a step: acc[r] += the sums of R rows, scaled.
template <int R, class F>
[[gnu::always_inline]] inline void add_group(const IntegerSpan<F>& span, std::int64_t step, int g,
                                             const std::int32_t* sums, std::int64_t ahead_bytes,
                                             vec* acc) {
  constexpr int bytes = F::kBytes * kPieceK / F::kGroup;
  const std::uint8_t* block = span.block(step, g);
  const std::uint8_t* ahead = block + span.piece(step, g) * bytes + ahead_bytes;
  const std::int32_t* scales = span.rows + (kGroupsPerStep * step + g) * kGroupWords * R;
  // A base and an index would make two instructions of each that reads a scale.
  asm volatile("" : "+r"(scales), "+r"(ahead));
#pragma GCC unroll 16
  for (int line = 0; line < bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
  const vec scale = F::scale(block, span.piece(step, g), 0, 0);
  const vec minimum = F::minimum(block, span.piece(step, g), 0);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const vec sum = to_float(_mm512_loadu_si512(sums + r * kPanel));
    acc[r] = fma(mul(sum, broadcast_word(scales + kScaleWord * R + r)), scale, acc[r]);
    if constexpr (F::kHasMinimum) {
      acc[r] = fma(broadcast_word(scales + kScaledSumWord * R + r), minimum, acc[r]);
    }
  }
}

// out[r][16] = the R rows of `span` times its panel. `turn` counts steps; when this begins and
// ends, the stages ahead have done their part for the first steps of the span.
template <int R, class F>
void multiply_span(const IntegerRoom& room, const IntegerSpan<F>& span,
                   const IntegerSpan<F>& next, std::int64_t num_steps, std::int64_t turn,
                   std::int64_t ahead_bytes, float* out) {
  vec acc[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (std::int64_t step = 0; step < num_steps; ++step, ++turn) {
    add_group<R>(span, step, 0, room.sums(0), ahead_bytes, acc);
    add_group<R>(span, step, 1, room.sums(1), ahead_bytes, acc);

    store_tile<0>(room.sums(0), kTileBytes);
    store_tile<1>(room.sums(1), kTileBytes);

    const std::int64_t second = step + kStagesAhead - 1;
    const bool multiplies_next = second >= num_steps;
    const IntegerSpan<F>& multiplied = multiplies_next ? next : span;
    const std::int64_t multiplied_step = multiplies_next ? second - num_steps : second;
    multiply_group<0>(room.codes(turn + kStagesAhead - 1, 0), multiplied.group(multiplied_step, 0));
    multiply_group<1>(room.codes(turn + kStagesAhead - 1, 1), multiplied.group(multiplied_step, 1));

    const std::int64_t first = step + kStagesAhead;
    const bool spreads_next = first >= num_steps;
    const IntegerSpan<F>& spread = spreads_next ? next : span;
    const std::int64_t spread_step = spreads_next ? first - num_steps : first;
#pragma GCC unroll 2
    for (int g = 0; g < kGroupsPerStep; ++g) {
      spread_codes<F>(spread.block(spread_step, g), spread.piece(spread_step, g),
                      room.codes(turn + kStagesAhead, g));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) store(out + r * kPanel, acc[r]);
}

template <class F>
using SpanFunction = void (*)(const IntegerRoom&, const IntegerSpan<F>&, const IntegerSpan<F>&,
                              std::int64_t, std::int64_t, std::int64_t, float*);

template <class F, std::size_t... I>
constexpr std::array<SpanFunction<F>, sizeof...(I)> span_functions(std::index_sequence<I...>) {
  return {&multiply_span<static_cast<int>(I) + kFewestTileRows, F>...};
}

// All rows, rounded by row, times `num_panels` panels over num_k values; finish(p) after panel p,
// whose results lie in total[num_rows][16] then. `scratch` holds kIntegerScratchFloats.
template <class F, class Finish>
void multiply_integer_tiles(const std::int32_t* words, const RowBlocks& blocks, std::int64_t num_k,
                            const std::uint8_t* panels, std::int64_t num_panels,
                            std::int64_t ahead_bytes, float* scratch, float* total,
                            const Finish& finish) {
  static constexpr auto functions =
      span_functions<F>(std::make_index_sequence<kTileRows - kFewestTileRows + 1>{});
  if (num_panels == 0) return;
  // Blocks differ by a row at most; the smaller ones are multiplied with a line that is no row.
  int largest = 0;
  for (std::int64_t b = 0; b < blocks.num_blocks; ++b) largest = std::max(largest, blocks.size(b));
  Tiles tiles(integer_shapes(largest));
  const IntegerRoom room{reinterpret_cast<std::int32_t*>(scratch),
                         reinterpret_cast<std::uint8_t*>(scratch + kStepSums)};
  const std::int64_t num_spans = num_panels * blocks.num_blocks;
  // Behind the last span comes that span again.
  const auto span_at = [&](std::int64_t i) -> IntegerSpan<F> {
    const std::int64_t panel = std::min(i, num_spans - 1) / blocks.num_blocks;
    const std::int64_t b = std::min(i, num_spans - 1) % blocks.num_blocks;
    return {panels + panel * (num_k / F::kGroup * F::kBytes),
            words + quantized_words(blocks.begin(b), num_k), blocks.size(b)};
  };
  IntegerSpan<F> span = span_at(0);
  const auto spread = [&](std::int64_t step, int g) {
    spread_codes<F>(span.block(step, g), span.piece(step, g), room.codes(step, g));
  };
  for (int g = 0; g < kGroupsPerStep; ++g) {
    spread(0, g);
    spread(1, g);
  }
  multiply_group<0>(room.codes(0, 0), span.group(0, 0));
  multiply_group<1>(room.codes(0, 1), span.group(0, 1));
  store_tile<0>(room.sums(0), kTileBytes);
  store_tile<1>(room.sums(1), kTileBytes);
  multiply_group<0>(room.codes(1, 0), span.group(1, 0));
  multiply_group<1>(room.codes(1, 1), span.group(1, 1));
  for (int g = 0; g < kGroupsPerStep; ++g) spread(2, g);
  const std::int64_t num_steps = num_k / (kGroupsPerStep * kPieceK);
  for (std::int64_t i = 0; i < num_spans; ++i) {
    const IntegerSpan<F> next = span_at(i + 1);
    const std::int64_t b = i % blocks.num_blocks;
    const auto function = functions[static_cast<std::size_t>(span.num_rows - kFewestTileRows)];
    // Later passes over the panel find it in cache and ask for what is there.
    function(room, span, next, num_steps, i * num_steps, b == 0 ? ahead_bytes : 0,
             total + blocks.begin(b) * kPanel);
    if (b == blocks.num_blocks - 1) finish(i / blocks.num_blocks);
    span = next;
  }
}

}  // namespace ygg

#endif
