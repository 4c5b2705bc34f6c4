// Products on tile registers (Intel AMX): 16 rows times 16 columns in one instruction, so that
// many rows cost little more than one.
//
// Float rows times bfloat16 weights have an order of their own here: a row is the sum of three
// bfloat16 parts, exactly, and the products of each part are exact too; steps of 32 values of k
// are added in order, the first part's apart from the others', and the two sums are added at the
// end. Within a step the instruction adds even and odd k apart. Numbers below the smallest normal
// one count as zero. A row's bits depend on that row alone.
#pragma once

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && \
    defined(__AVX512BW__)
#define YGG_AMX 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "tile.h"

namespace ygg {

// Asks the kernel for tile registers, for all threads of this process; false if it refuses.
inline bool allow_tiles() {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Rows of a tile register, and bytes of a row.
constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;

struct TileShape {
  int rows;
  int bytes;
};

// The tile registers of this thread, in the given shapes, until the end of the scope.
class Tiles {
 public:
  explicit Tiles(const std::array<TileShape, 8>& shapes) { set(shapes); }
  // Does nothing if they have these shapes.
  void set(const std::array<TileShape, 8>& shapes) {
    if (shapes[0].rows == rows_) return;
    rows_ = shapes[0].rows;
    struct {
      std::uint8_t palette = 1;
      std::uint8_t start = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    static_assert(sizeof config == 64);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      config.bytes[i] = static_cast<std::uint16_t>(shapes[i].bytes);
      config.rows[i] = static_cast<std::uint8_t>(shapes[i].rows);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  int rows_ = 0;
};

// The compiler's own intrinsics do not tell it that they read and write memory.
template <int T>
inline void load_tile(const void* p, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void store_tile(void* p, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
// C += A B over bfloat16, k = 2m and 2m + 1.
template <int C, int A, int B>
inline void add_bf16_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

// A tile is read line by line and stalls on each that is not in the nearest cache by then.
constexpr std::int64_t kNearBytes = 3072;

// Values of k in one bfloat16 product of tiles, and the parts of a row.
constexpr std::int64_t kStepK = 32;
constexpr int kParts = 3;

inline std::int64_t num_steps(std::int64_t num_k) { return (num_k + kStepK - 1) / kStepK; }

// Bytes of the parts of `num_rows` rows: row block b lies at begin(b) times the bytes of one row,
// as tiles [step][part][size][32].
inline std::int64_t part_bytes(std::int64_t num_rows, std::int64_t num_k) {
  return num_rows * num_steps(num_k) * kParts * kTileBytes;
}

// Sixteen values as upper halves of floats that sum to them exactly; infinity and NaN have one
// part.
struct Split {
  __m512i part[kParts];

  explicit Split(vec x) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    const __m512i exponent = _mm512_set1_epi32(0x7F800000);
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 finite =
        _mm512_cmpneq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
    const __mmask16 none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    // A NaN whose upper half says infinity stays one.
    part[0] = _mm512_and_si512(
        _mm512_mask_or_epi32(bits, none, bits, _mm512_set1_epi32(0x00400000)), upper);
    const vec rest = _mm512_maskz_sub_ps(finite, x, _mm512_castsi512_ps(part[0]));
    part[1] = _mm512_and_si512(_mm512_castps_si512(rest), upper);
    part[2] = _mm512_castps_si512(sub(rest, _mm512_castsi512_ps(part[1])));
  }
};

// Part `part` of `num_parts` of all steps of the rows.
inline void split_rows(const float* x, std::int64_t num_rows, std::int64_t num_k,
                       std::uint8_t* out, std::int64_t part, std::int64_t num_parts) {
  const RowBlocks blocks(num_rows, kTileRows);
  const std::int64_t first = num_steps(num_k) * part / num_parts;
  const std::int64_t last = num_steps(num_k) * (part + 1) / num_parts;
  for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
    const int size = blocks.size(b);
    std::uint8_t* block = out + part_bytes(blocks.begin(b), num_k);
    for (std::int64_t step = first; step < last; ++step) {
      std::uint8_t* tiles = block + step * kParts * size * kTileBytes;
      const auto count = static_cast<int>(std::min(kStepK, num_k - step * kStepK));
      for (int r = 0; r < size; ++r) {
        const float* values = x + (blocks.begin(b) + r) * num_k + step * kStepK;
        const Split low(load_first(values, std::min(count, kLanes)));
        const Split high(load_first(values + kLanes, std::max(0, count - kLanes)));
        for (int p = 0; p < kParts; ++p) {
          std::uint8_t* row = tiles + (p * size + r) * kTileBytes;
          const __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(low.part[p], 16));
          const __m256i c = _mm512_cvtepi32_epi16(_mm512_srli_epi32(high.part[p], 16));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(row), a);
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(row) + 1, c);
        }
      }
    }
  }
}

// The last `count` values of k of a panel as a tile with zeros behind them.
inline void fill_last_step(const bf16* step, std::int64_t count, std::uint8_t* tile) {
  bf16 values[kStepK * kPanel] = {};
  std::memcpy(values, step, static_cast<std::size_t>(count / 2 * 2) * kPanel * sizeof(bf16));
  // An odd last row has no neighbour.
  for (int c = 0; count % 2 == 1 && c < kPanel; ++c) {
    values[((count - 1) / 2 * kPanel + c) * 2] = step[(count - 1) * kPanel + c];
  }
  std::memcpy(tile, values, sizeof values);
}

// Registers of bfloat16 products: sums of the first part and of the others for two panels, weights
// of two panels, rows.
inline std::array<TileShape, 8> bf16_shapes(int size) {
  return {{{size, kTileBytes}, {size, kTileBytes}, {size, kTileBytes}, {size, kTileBytes},
           {kTileRows, kTileBytes}, {kTileRows, kTileBytes},
           {size, kTileBytes}, {size, kTileBytes}}};
}

// Floats that multiply_bf16_panels needs of scratch, per thread: sums, and the last steps of two
// panels.
constexpr std::int64_t kTileFloats = kTileRows * kTileBytes / sizeof(float);
constexpr std::int64_t kBf16ScratchFloats = 6 * kTileFloats;

// total[r][p * 16 + ..]: all rows times P panels over num_k values that follow one another.
// `tiles` has the shapes for the first block of rows, `parts` is split_rows' result.
template <int P>
void multiply_bf16_panels(Tiles& tiles, const std::uint8_t* parts, std::int64_t num_rows,
                          std::int64_t num_k, const bf16* panels, float* scratch, float* total,
                          std::int64_t ahead_bytes) {
  const RowBlocks blocks(num_rows, kTileRows);
  const std::int64_t steps = num_steps(num_k);
  const std::int64_t rest = num_k % kStepK;
  float* sums = scratch;
  auto* last = reinterpret_cast<std::uint8_t*>(scratch + 4 * kTileFloats);
  constexpr std::int64_t kTile = kTileRows * kTileBytes;
  for (int p = 0; rest > 0 && p < P; ++p) {
    fill_last_step(panels + ((p + 1) * num_k - rest) * kPanel, rest, last + p * kTile);
  }
  for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
    const int size = blocks.size(b);
    if (blocks.num_blocks > 1) tiles.set(bf16_shapes(size));
    const std::int64_t a_bytes = size * kTileBytes;
    const std::uint8_t* a = parts + part_bytes(blocks.begin(b), num_k);
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto* first = reinterpret_cast<const std::uint8_t*>(panels) + step * kTile;
      const std::uint8_t* second = first + num_k * kPanel * sizeof(bf16);
      if (b == 0) {
        for (int line = 0; line < kTile; line += 64) {
          __builtin_prefetch(first + ahead_bytes + line, 0, 2);
          __builtin_prefetch(first + kNearBytes + line, 0, 3);
          if constexpr (P == 2) {
            __builtin_prefetch(second + ahead_bytes + line, 0, 2);
            __builtin_prefetch(second + kNearBytes + line, 0, 3);
          }
        }
      }
      if (rest > 0 && step == steps - 1) {
        first = last;
        second = last + kTile;
      }
      load_tile<4>(first, kTileBytes);
      load_tile<6>(a, kTileBytes);
      add_bf16_products<0, 6, 4>();
      if constexpr (P == 2) {
        load_tile<5>(second, kTileBytes);
        add_bf16_products<2, 6, 5>();
      }
      load_tile<7>(a + a_bytes, kTileBytes);
      add_bf16_products<1, 7, 4>();
      if constexpr (P == 2) add_bf16_products<3, 7, 5>();
      load_tile<6>(a + 2 * a_bytes, kTileBytes);
      add_bf16_products<1, 6, 4>();
      if constexpr (P == 2) add_bf16_products<3, 6, 5>();
      a += kParts * a_bytes;
    }
    store_tile<0>(sums, kTileBytes);
    store_tile<1>(sums + kTileFloats, kTileBytes);
    if constexpr (P == 2) {
      store_tile<2>(sums + 2 * kTileFloats, kTileBytes);
      store_tile<3>(sums + 3 * kTileFloats, kTileBytes);
    }
    for (int p = 0; p < P; ++p) {
      for (int r = 0; r < size; ++r) {
        const float* sum = sums + p * 2 * kTileFloats + r * kPanel;
        store(total + ((blocks.begin(b) + r) * P + p) * kPanel,
              add(load(sum), load(sum + kTileFloats)));
      }
    }
  }
}

}  // namespace ygg

#endif
