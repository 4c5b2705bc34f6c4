// y = x W^T + b for packed weights of any format.
//
// Accumulation order, never to change: K in chunks of 256, each summed from zero in order of k,
// the chunk sums added in order, then the bias. Rows rounded to int8 have an order of their own
// (integer.h). A panel's chunk stays in cache while all rows pass over it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "amx.h"
#include "amx_integer.h"
#include "formats.h"
#include "integer.h"
#include "memory.h"
#include "tile.h"

namespace ygg {

constexpr std::int64_t kChunkK = 256;
// Weights are asked for this long before they are used, past any page boundary.
constexpr std::int64_t kAheadBytes = 32768;
// Up to this many rows, two chunks are summed side by side.
constexpr int kPairRows = std::min(4, kMaxTileRows / 2);
// Up to this many rows, quantised weights are decoded in registers, for more rows into the cache.
constexpr int kCodeRows = 2;

// Many rows: tiles of two panels.
inline bool shares_panels(std::int64_t num_rows) {
  return kLanes == kPanel && num_rows > kMaxTileRows;
}
inline RowBlocks linear_blocks(std::int64_t num_rows) {
  return RowBlocks(num_rows, shares_panels(num_rows) ? kMaxSharedRows : kMaxTileRows);
}

struct LinearWeight {
  const void* panels;  // as the format says, zero padded to panels of 16 columns
  const float* bias;   // [num_outputs] or null
  float* out;          // [num_rows][num_outputs]
  std::int64_t num_outputs;
  std::int64_t format;

  std::int64_t num_panels() const { return (num_outputs + kPanel - 1) / kPanel; }
  bool quantized() const { return format > kBfloat16; }
};

// The rows of one call, in the forms its weights need.
struct LinearRows {
  const float* packed;          // pack_rows' result (for one row: x itself), or null
  const std::int32_t* integer;  // quantize_rows' result, or null: quantised weights take floats
  CodeOrder order;              // of its codes
  const std::uint8_t* parts;    // split_rows' result, or null: bfloat16 weights take floats
  std::int64_t num_rows;
  std::int64_t num_k;
};

// Floats that linear_panels needs of scratch, per thread: totals and decoded chunks of two panels.
inline std::int64_t linear_scratch_floats(std::int64_t num_rows) {
  return num_rows * 2 * kPanel + 2 * kChunkK * kPanel;
}
#if defined(YGG_AMX)
static_assert(kBf16ScratchFloats <= 2 * kChunkK * kPanel);
static_assert(kIntegerScratchFloats <= 2 * kChunkK * kPanel);
#endif

// Part `part` of `num_parts` of the transposed row blocks: block b lies at packed + begin(b) *
// num_k as [num_k][size]. The split is by k, so that any number of threads shares a single
// block.
inline void pack_rows(const float* x, std::int64_t num_rows, std::int64_t num_k, float* packed,
                      std::int64_t part, std::int64_t num_parts) {
  const RowBlocks blocks = linear_blocks(num_rows);
  const std::int64_t k_begin = num_k * part / num_parts;
  const std::int64_t k_end = num_k * (part + 1) / num_parts;
  for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
    const int size = blocks.size(b);
    pack_block(x + blocks.begin(b) * num_k + k_begin, num_k, size, k_end - k_begin,
               packed + blocks.begin(b) * num_k + k_begin * size);
  }
}

// What one call computes beside its weights, and where it lies in one block of memory: the rows in
// the forms that the weights need, then every thread's scratch.
class LinearPlan {
 public:
  LinearPlan(const LinearWeight* weights, std::int64_t num_weights, bool integer,
             std::int64_t num_rows, std::int64_t num_k)
      : num_rows_(num_rows), num_k_(num_k) {
#if defined(YGG_AMX)
    tiles_ = fits_tiles(num_rows, num_k);
#endif
    for (std::int64_t i = 0; i < num_weights; ++i) {
      if (integer && weights[i].quantized()) {
        integer_ = true;
        with_format(weights[i].format, [&](auto format) {
          tiles_ = tiles_ && decltype(format)::kSubgroups == 1;
        });
      } else if (kSplitsRows && weights[i].format == kBfloat16) {
        splits_ = true;
      } else {
        floats_ = true;
      }
    }
    if (packs()) integer_at_ = lines(num_rows * num_k * sizeof(float));
    parts_at_ = integer_at_;
    if (integer_) parts_at_ += lines(quantized_words(num_rows, num_k) * sizeof(std::int32_t));
    scratch_at_ = parts_at_;
#if defined(YGG_AMX)
    if (splits_) scratch_at_ += lines(part_bytes(num_rows, num_k));
#endif
    scratch_at_ = bytes_apart(scratch_at_);
    scratch_bytes_ = bytes_apart(linear_scratch_floats(num_rows) * sizeof(float));
  }

  std::int64_t num_bytes(int num_threads) const {
    return scratch_at_ + num_threads * scratch_bytes_;
  }
  // Whether prepare has anything to do; if so, all of it comes before the first product.
  bool prepares() const { return packs() || integer_ || splits_; }
  // Part `part` of `num_parts`.
  void prepare(const float* x, char* memory, std::int64_t part, std::int64_t num_parts) const {
    if (packs()) {
      pack_rows(x, num_rows_, num_k_, reinterpret_cast<float*>(memory), part, num_parts);
    }
    if (integer_) {
      quantize_rows(x, num_rows_, num_k_, order(),
                    reinterpret_cast<std::int32_t*>(memory + integer_at_), part, num_parts);
    }
#if defined(YGG_AMX)
    if (splits_) {
      split_rows(x, num_rows_, num_k_, reinterpret_cast<std::uint8_t*>(memory + parts_at_), part,
                 num_parts);
    }
#endif
  }
  LinearRows rows(const float* x, const char* memory) const {
    return {packs() ? reinterpret_cast<const float*>(memory) : x,
            integer_ ? reinterpret_cast<const std::int32_t*>(memory + integer_at_) : nullptr,
            order(),
            splits_ ? reinterpret_cast<const std::uint8_t*>(memory + parts_at_) : nullptr,
            num_rows_, num_k_};
  }
  float* scratch(char* memory, std::int64_t thread) const {
    return reinterpret_cast<float*>(memory + scratch_at_ + thread * scratch_bytes_);
  }

 private:
#if defined(YGG_AMX)
  static constexpr bool kSplitsRows = true;
#else
  static constexpr bool kSplitsRows = false;
#endif
  static std::int64_t lines(std::int64_t num_bytes) { return (num_bytes + 63) / 64 * 64; }
  CodeOrder order() const { return tiles_ ? CodeOrder::kByRow : CodeOrder::kByWord; }
  // One row is its own packed form.
  bool packs() const { return floats_ && num_rows_ > 1; }

  std::int64_t num_rows_, num_k_;
  bool floats_ = false, integer_ = false, splits_ = false;
  bool tiles_ = false;  // integer products on tile registers
  std::int64_t integer_at_ = 0, parts_at_ = 0, scratch_at_ = 0, scratch_bytes_ = 0;
};

// total[r] = total[r] + first chunk's sum + second chunk's sum, in this order; two chunks at once
// hide the latency of the additions when there are few rows.
template <class T>
void multiply_chunk_pair(const float* x, int num_rows, const T* chunk, float* total,
                         bool accumulate) {
  float sums[kPairRows * 2 * kPanel];
  tile_for<2, T>(num_rows)(x, kChunkK * num_rows, chunk, kChunkK * kPanel, kChunkK, sums,
                           2 * kPanel, false,
                           {reinterpret_cast<const char*>(chunk) + kAheadBytes,
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

// Adds a bias and writes the totals [num_rows][stride] of one panel to the output.
inline void finish_panel(const LinearWeight& weight, std::int64_t panel, std::int64_t num_rows,
                         const float* total, std::int64_t stride) {
  const std::int64_t first = panel * kPanel;
  const std::int64_t width = std::min<std::int64_t>(kPanel, weight.num_outputs - first);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    float* out = weight.out + r * weight.num_outputs + first;
    for (std::int64_t c = 0; c < width; c += kLanes) {
      const int lanes = static_cast<int>(std::min<std::int64_t>(kLanes, width - c));
      vec sum = load(total + r * stride + c);
      if (weight.bias != nullptr) sum = add(sum, load_first(weight.bias + first + c, lanes));
      store_first(out + c, sum, lanes);
    }
  }
}

// One chunk [count][16] of each of P panels, `panel_stride` elements apart, times all row blocks:
// total[r][P * 16].
template <int P, class T>
void multiply_chunk(const LinearRows& rows, const RowBlocks& blocks, const T* chunk,
                    std::int64_t panel_stride, std::int64_t k, std::int64_t count, float* total,
                    Prefetch ahead) {
  const std::int64_t bytes_per_pass = ahead.step_bytes * count;
  for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
    const int size = blocks.size(b);
    const auto tile = P == 2 ? shared_tile_for<T>(size) : tile_for<1, T>(size);
    tile(rows.packed + blocks.begin(b) * rows.num_k + k * size, 0, chunk, panel_stride, count,
         total + blocks.begin(b) * P * kPanel, P * kPanel, k > 0,
         {ahead.address + b * bytes_per_pass, ahead.step_bytes});
  }
}

template <class T>
void multiply_float_panel(const LinearRows& rows, const LinearWeight& weight, std::int64_t panel,
                          float* scratch) {
  const RowBlocks blocks = linear_blocks(rows.num_rows);
  const T* weights = static_cast<const T*>(weight.panels) + panel * rows.num_k * kPanel;
  std::int64_t k = 0;
  if (blocks.num_rows <= kPairRows) {
    const int num_rows = static_cast<int>(blocks.num_rows);
    for (; k + 2 * kChunkK <= rows.num_k; k += 2 * kChunkK) {
      multiply_chunk_pair(rows.packed + k * num_rows, num_rows, weights + k * kPanel, scratch,
                          k > 0);
    }
  }
  for (; k < rows.num_k; k += kChunkK) {
    const std::int64_t count = std::min(kChunkK, rows.num_k - k);
    const T* chunk = weights + k * kPanel;
    // The passes over this chunk share the work of fetching what lies ahead.
    const std::int64_t step_bytes = kPanel * sizeof(T) / blocks.num_blocks;
    multiply_chunk<1>(rows, blocks, chunk, 0, k, count, scratch,
                      {reinterpret_cast<const char*>(chunk) + kAheadBytes, step_bytes});
  }
  finish_panel(weight, panel, rows.num_rows, scratch, kPanel);
}

// Many rows: two panels, chunk by chunk. While all rows pass over a chunk they fetch the next one,
// which after the last one of these panels is the first of those behind them.
template <class T>
void multiply_float_pair(const LinearRows& rows, const LinearWeight& weight, std::int64_t panel,
                         float* scratch) {
  const RowBlocks blocks = linear_blocks(rows.num_rows);
  const T* weights = static_cast<const T*>(weight.panels) + panel * rows.num_k * kPanel;
  for (std::int64_t k = 0; k < rows.num_k; k += kChunkK) {
    const std::int64_t count = std::min(kChunkK, rows.num_k - k);
    const std::int64_t next = k + count < rows.num_k ? k + count : 0;
    const T* ahead = weights + (next == 0 ? 2 * rows.num_k : next) * kPanel;
    const std::int64_t ahead_bytes = std::min(kChunkK, rows.num_k - next) * kPanel * sizeof(T);
    multiply_chunk<2>(
        rows, blocks, weights + k * kPanel, rows.num_k * kPanel, k, count, scratch,
        {reinterpret_cast<const char*>(ahead), ahead_bytes / (count * blocks.num_blocks)});
  }
  for (int p = 0; p < 2; ++p) {
    finish_panel(weight, panel + p, rows.num_rows, scratch + p * kPanel, 2 * kPanel);
  }
}

template <class T>
void multiply_floats(const LinearRows& rows, const LinearWeight& weight, std::int64_t begin,
                     std::int64_t end, float* scratch) {
  std::int64_t panel = begin;
  for (; shares_panels(rows.num_rows) && panel + 2 <= end; panel += 2) {
    multiply_float_pair<T>(rows, weight, panel, scratch);
  }
  for (; panel < end; ++panel) multiply_float_panel<T>(rows, weight, panel, scratch);
}

// out[r][p * 16 + ..] += row r times the lanes of vector `v` of P panels, over `num_blocks` blocks
// that start at a chunk; the weights never leave the registers.
template <int R, int P, class F>
void multiply_codes(const float* x, const std::uint8_t* block, std::int64_t panel_bytes,
                    std::int64_t num_blocks, int v, float* out, bool accumulate) {
  vec acc[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) acc[r][p] = zero();
  }
  for (std::int64_t n = 0; n < num_blocks; ++n) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      for (int line = 0; line < F::kBytes; line += 64) {
        __builtin_prefetch(block + p * panel_bytes + kAheadBytes + line, 0, 2);
      }
    }
    for (int piece = 0; piece < F::kGroup / kPieceK; ++piece) {
      vec scale[P];
      vec shift[P];
      const auto rescale = [&](int s) {
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          scale[p] = F::scale(block + p * panel_bytes, piece, s, v);
          shift[p] = shift_of<F>(block + p * panel_bytes, piece, scale[p], v);
        }
      };
      const auto step = [&](const ivec* codes, auto byte) {
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          const vec weight = fma(to_float(byte_of<decltype(byte)::value>(codes[p])), scale[p],
                                 shift[p]);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) acc[r][p] = fma(broadcast(x[r]), weight, acc[r][p]);
        }
        x += R;
      };
      const auto four = [&](auto m) {
        ivec codes[P];
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          codes[p] = F::template codes<decltype(m)::value>(block + p * panel_bytes, piece, v);
        }
        step(codes, std::integral_constant<int, 0>{});
        step(codes, std::integral_constant<int, 1>{});
        step(codes, std::integral_constant<int, 2>{});
        step(codes, std::integral_constant<int, 3>{});
      };
      rescale(0);
      four(std::integral_constant<int, 0>{});
      four(std::integral_constant<int, 1>{});
      four(std::integral_constant<int, 2>{});
      four(std::integral_constant<int, 3>{});
      if constexpr (F::kSubgroups == 2) rescale(1);
      four(std::integral_constant<int, 4>{});
      four(std::integral_constant<int, 5>{});
      four(std::integral_constant<int, 6>{});
      four(std::integral_constant<int, 7>{});
    }
    block += F::kBytes;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      float* target = out + (r * P + p) * kPanel + v * kLanes;
      store(target, accumulate ? add(load(target), acc[r][p]) : acc[r][p]);
    }
  }
}

template <int P, class F, std::size_t... I>
constexpr auto code_functions(std::index_sequence<I...>) {
  return std::array{&multiply_codes<static_cast<int>(I) + 1, P, F>...};
}

// Up to kCodeRows rows: P panels at once.
template <int P, class F>
void multiply_few(const LinearRows& rows, const LinearWeight& weight, std::int64_t panel,
                  float* scratch) {
  static constexpr auto functions = code_functions<P, F>(std::make_index_sequence<kCodeRows>{});
  const auto function = functions[static_cast<std::size_t>(rows.num_rows - 1)];
  const std::int64_t panel_bytes = rows.num_k / F::kGroup * F::kBytes;
  const auto* blocks = static_cast<const std::uint8_t*>(weight.panels) + panel * panel_bytes;
  for (std::int64_t k = 0; k < rows.num_k; k += kChunkK) {
    const std::int64_t count = std::min(kChunkK, rows.num_k - k);
    for (int v = 0; v < kVecsPerPanel; ++v) {
      function(rows.packed + k * rows.num_rows, blocks + k / F::kGroup * F::kBytes, panel_bytes,
               count / F::kGroup, v, scratch, k > 0);
    }
  }
  for (int p = 0; p < P; ++p) {
    finish_panel(weight, panel + p, rows.num_rows, scratch + p * kPanel, P * kPanel);
  }
}

// More rows: a chunk of P panels is decoded once, into the innermost cache.
template <int P, class F>
void multiply_many(const LinearRows& rows, const LinearWeight& weight, std::int64_t panel,
                   float* scratch) {
  const RowBlocks blocks = linear_blocks(rows.num_rows);
  float* decoded = scratch + rows.num_rows * 2 * kPanel;
  const std::int64_t panel_bytes = rows.num_k / F::kGroup * F::kBytes;
  const auto* first = static_cast<const std::uint8_t*>(weight.panels) + panel * panel_bytes;
  for (std::int64_t k = 0; k < rows.num_k; k += kChunkK) {
    const std::int64_t count = std::min(kChunkK, rows.num_k - k);
    for (int p = 0; p < P; ++p) {
      const std::uint8_t* block = first + p * panel_bytes + k / F::kGroup * F::kBytes;
      float* out = decoded + p * kChunkK * kPanel;
      for (std::int64_t done = 0; done < count; done += F::kGroup) {
        for (int line = 0; line < F::kBytes; line += 64) {
          __builtin_prefetch(block + kAheadBytes + line, 0, 2);
        }
        for (int piece = 0; piece < F::kGroup / kPieceK; ++piece) {
          decode_piece<F>(block, piece, out + (done + piece * kPieceK) * kPanel);
        }
        block += F::kBytes;
      }
    }
    multiply_chunk<P>(rows, blocks, static_cast<const float*>(decoded), kChunkK * kPanel, k, count,
                      scratch, {reinterpret_cast<const char*>(decoded), 0});
  }
  for (int p = 0; p < P; ++p) {
    finish_panel(weight, panel + p, rows.num_rows, scratch + p * kPanel, P * kPanel);
  }
}

template <class F>
void multiply_quantized(const LinearRows& rows, const LinearWeight& weight, std::int64_t begin,
                        std::int64_t end, float* scratch) {
  if (rows.integer == nullptr) {
    std::int64_t panel = begin;
    if (rows.num_rows <= kCodeRows) {
      for (; panel + 2 <= end; panel += 2) multiply_few<2, F>(rows, weight, panel, scratch);
      for (; panel < end; ++panel) multiply_few<1, F>(rows, weight, panel, scratch);
    }
    for (; shares_panels(rows.num_rows) && panel + 2 <= end; panel += 2) {
      multiply_many<2, F>(rows, weight, panel, scratch);
    }
    for (; panel < end; ++panel) multiply_many<1, F>(rows, weight, panel, scratch);
    return;
  }
  const RowBlocks blocks(rows.num_rows, kMaxIntegerRows);
  const std::int64_t num_blocks = rows.num_k / F::kGroup;
#if defined(YGG_AMX)
  if constexpr (F::kSubgroups == 1) {
    if (rows.order == CodeOrder::kByRow) {
      const auto* panels = static_cast<const std::uint8_t*>(weight.panels);
      multiply_integer_tiles<F>(rows.integer, blocks, rows.num_k,
                                panels + begin * num_blocks * F::kBytes, end - begin, kAheadBytes,
                                scratch + rows.num_rows * 2 * kPanel, scratch,
                                [&](std::int64_t panel) {
                                  finish_panel(weight, begin + panel, rows.num_rows, scratch,
                                               kPanel);
                                });
      return;
    }
  }
#endif
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const auto* block =
        static_cast<const std::uint8_t*>(weight.panels) + panel * num_blocks * F::kBytes;
    for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
      const int size = blocks.size(b);
      for (int v = 0; v < kVecsPerPanel; ++v) {
        // Later passes over the panel find it in cache and ask for what is there.
        const char* ahead =
            reinterpret_cast<const char*>(block) + (b + v == 0 ? kAheadBytes : 0);
        integer_for<F>(size)(rows.integer + quantized_words(blocks.begin(b), rows.num_k), block,
                             num_blocks, v, scratch + blocks.begin(b) * kPanel + v * kLanes,
                             kPanel, ahead);
      }
    }
    finish_panel(weight, panel, rows.num_rows, scratch, kPanel);
  }
}

// Bfloat16 weights as they suit the machine.
inline void multiply_bf16(const LinearRows& rows, const LinearWeight& weight, std::int64_t begin,
                          std::int64_t end, float* scratch) {
#if defined(YGG_AMX)
  const auto* weights = static_cast<const bf16*>(weight.panels);
  float* rest = scratch + rows.num_rows * 2 * kPanel;
  Tiles tiles(bf16_shapes(RowBlocks(rows.num_rows, kTileRows).size(0)));
  std::int64_t panel = begin;
  for (; panel + 2 <= end; panel += 2) {
    multiply_bf16_panels<2>(tiles, rows.parts, rows.num_rows, rows.num_k,
                            weights + panel * rows.num_k * kPanel, rest, scratch, kAheadBytes);
    for (int p = 0; p < 2; ++p) {
      finish_panel(weight, panel + p, rows.num_rows, scratch + p * kPanel, 2 * kPanel);
    }
  }
  for (; panel < end; ++panel) {
    multiply_bf16_panels<1>(tiles, rows.parts, rows.num_rows, rows.num_k,
                            weights + panel * rows.num_k * kPanel, rest, scratch, kAheadBytes);
    finish_panel(weight, panel, rows.num_rows, scratch, kPanel);
  }
#else
  multiply_floats<bf16>(rows, weight, begin, end, scratch);
#endif
}

// Part `part` of `num_parts` of all panels of all weights. `scratch` holds
// linear_scratch_floats(num_rows).
inline void linear_panels(const LinearRows& rows, const LinearWeight* weights,
                          std::int64_t num_weights, float* scratch, std::int64_t part,
                          std::int64_t num_parts) {
  if (rows.num_rows == 0) return;
  std::int64_t num_panels = 0;
  for (std::int64_t i = 0; i < num_weights; ++i) num_panels += weights[i].num_panels();
  const std::int64_t begin = num_panels * part / num_parts;
  const std::int64_t end = num_panels * (part + 1) / num_parts;
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < num_weights; ++i) {
    const std::int64_t count = weights[i].num_panels();
    const std::int64_t first = std::clamp<std::int64_t>(begin - offset, 0, count);
    const std::int64_t last = std::clamp<std::int64_t>(end - offset, 0, count);
    if (weights[i].format == kFloat32) {
      multiply_floats<float>(rows, weights[i], first, last, scratch);
    } else if (weights[i].format == kBfloat16) {
      multiply_bf16(rows, weights[i], first, last, scratch);
    } else {
      with_format(weights[i].format, [&](auto format) {
        multiply_quantized<decltype(format)>(rows, weights[i], first, last, scratch);
      });
    }
    offset += count;
  }
}

}  // namespace ygg
