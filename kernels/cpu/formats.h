// Quantised weights: the codes and scales of GGUF's blocks, reordered so that one vector holds four
// neighbours in k of every column of a panel.
//
// A panel of 16 columns is a row of blocks, each over kGroup values of k. Pieces of a block, each
// over 32 values of k; lane j is column j, byte b of its four bytes comes b-th in k:
//   codes4 (256 bytes): vector v, low half bytes k = 8v + b, high half bytes k = 8v + 4 + b
//   codes8 (512 bytes): vector m, k = 4m + b
//   codes2 (128 bytes): vector u, bits 2f and 2f + 1 of a byte k = 16u + 4f + b; above codes4
//   bits5   (64 bytes): 64-bit word m, bit 4j + b for k = 4m + b; above codes4
// Scales are half floats d[16] (and minima m[16]) ahead of the codes; formats with groups of 256
// carry one byte per column and sub-group beside them.
#pragma once

#include <cstdint>

#include "vec.h"

namespace ygg {

constexpr int kPanel = 16;

// Place of value `k` of column `c` in a panel of floats over num_k values. Two neighbours in k of
// bfloat16 lie side by side, but for the last of an odd number.
template <class T>
constexpr std::int64_t place_in_panel(std::int64_t k, std::int64_t c, std::int64_t num_k) {
  const bool paired = sizeof(T) == sizeof(bf16) && (k | 1) < num_k;
  return paired ? (k / 2 * kPanel + c) * 2 + k % 2 : k * kPanel + c;
}

constexpr int kVecsPerPanel = kPanel / kLanes;
constexpr int kPieceK = 32;
constexpr int kVecBytes = 4 * kLanes;
constexpr int kHalves = 2 * kPanel;  // bytes of one half float per column
constexpr int kCodes4 = 16 * kPanel;
constexpr int kCodes8 = 32 * kPanel;
constexpr int kCodes2 = 8 * kPanel;
constexpr int kBits5 = 4 * kPanel;

// Codes k = 4M .. 4M + 3 of a piece, one column a lane, for vector `v` of the panel.
template <int M>
inline ivec load_codes4(const std::uint8_t* piece, int v) {
  const ivec both = iload(piece + M / 2 * 4 * kPanel + v * kVecBytes);
  return and_bits(shift_right<M % 2 * 4>(both), ibroadcast(0x0F0F0F0F));
}
template <int M>
inline ivec load_bits5(const std::uint8_t* piece, int v) {
  return sixteen_where(piece + M * 8 + v * kLanes / 2);
}
template <int M>
inline ivec load_codes2(const std::uint8_t* piece, int v) {
  constexpr int shift = M % 4 * 2;
  const ivec all = iload(piece + M / 4 * 4 * kPanel + v * kVecBytes);
  // The two bits of every byte to bits 4 and 5.
  const ivec moved = shift <= 4 ? shift_left<(shift <= 4 ? 4 - shift : 0)>(all)
                                : shift_right<(shift > 4 ? shift - 4 : 0)>(all);
  return and_bits(moved, ibroadcast(0x30303030));
}

// A weight is scale * (code - kOffset) + minimum. Every format has, for piece `p` of a block and
// vector `v` of the panel:
//   codes<M>   unsigned codes, below 128 unless kWide
//   scale      of sub-group s, kSubgroups of which share a piece evenly
//   minimum    only if kHasMinimum
struct Q4_0 {
  static constexpr int kGroup = 32, kBytes = kHalves + kCodes4, kOffset = 8, kSubgroups = 1;
  static constexpr bool kWide = false, kHasMinimum = false;
  template <int M>
  static ivec codes(const std::uint8_t* block, int, int v) {
    return load_codes4<M>(block + kHalves, v);
  }
  static vec scale(const std::uint8_t* block, int, int, int v) {
    return load_half(block + v * 2 * kLanes);
  }
  static vec minimum(const std::uint8_t*, int, int) { return zero(); }
};

struct Q4_1 : Q4_0 {
  static constexpr int kBytes = 2 * kHalves + kCodes4, kOffset = 0;
  static constexpr bool kHasMinimum = true;
  template <int M>
  static ivec codes(const std::uint8_t* block, int, int v) {
    return load_codes4<M>(block + 2 * kHalves, v);
  }
  static vec minimum(const std::uint8_t* block, int, int v) {
    return load_half(block + kHalves + v * 2 * kLanes);
  }
};

struct Q5_0 : Q4_0 {
  static constexpr int kBytes = kHalves + kBits5 + kCodes4, kOffset = 16;
  template <int M>
  static ivec codes(const std::uint8_t* block, int, int v) {
    return or_bits(load_codes4<M>(block + kHalves + kBits5, v), load_bits5<M>(block + kHalves, v));
  }
};

struct Q5_1 : Q4_1 {
  static constexpr int kBytes = 2 * kHalves + kBits5 + kCodes4;
  template <int M>
  static ivec codes(const std::uint8_t* block, int, int v) {
    return or_bits(load_codes4<M>(block + 2 * kHalves + kBits5, v),
                   load_bits5<M>(block + 2 * kHalves, v));
  }
};

// Signed codes, read as unsigned ones that are 128 larger.
struct Q8_0 : Q4_0 {
  static constexpr int kBytes = kHalves + kCodes8, kOffset = 128;
  static constexpr bool kWide = true;
  template <int M>
  static ivec codes(const std::uint8_t* block, int, int v) {
    return xor_bits(iload(block + kHalves + M * 4 * kPanel + v * kVecBytes),
                    ibroadcast(static_cast<std::int32_t>(0x80808080u)));
  }
};

// Eight pieces, each with a byte of scale and one of minimum per column.
struct Q4_K {
  static constexpr int kGroup = 256, kHead = 2 * kHalves + 16 * kPanel;
  static constexpr int kBytes = kHead + 8 * kCodes4, kOffset = 0, kSubgroups = 1;
  static constexpr bool kWide = false, kHasMinimum = true;
  template <int M>
  static ivec codes(const std::uint8_t* block, int p, int v) {
    return load_codes4<M>(block + kHead + p * kCodes4, v);
  }
  static vec scale(const std::uint8_t* block, int p, int, int v) {
    return mul(load_half(block + v * 2 * kLanes),
               load_unsigned(block + 2 * kHalves + 2 * p * kPanel + v * kLanes));
  }
  static vec minimum(const std::uint8_t* block, int p, int v) {
    const vec size = mul(load_half(block + kHalves + v * 2 * kLanes),
                         load_unsigned(block + 2 * kHalves + (2 * p + 1) * kPanel + v * kLanes));
    return sub(zero(), size);
  }
};

struct Q5_K : Q4_K {
  static constexpr int kBytes = kHead + 8 * (kBits5 + kCodes4);
  template <int M>
  static ivec codes(const std::uint8_t* block, int p, int v) {
    const std::uint8_t* piece = block + kHead + p * (kBits5 + kCodes4);
    return or_bits(load_codes4<M>(piece + kBits5, v), load_bits5<M>(piece, v));
  }
};

struct Q6_K {
  static constexpr int kGroup = 256, kHead = kHalves + 16 * kPanel;
  static constexpr int kBytes = kHead + 8 * (kCodes2 + kCodes4), kOffset = 32, kSubgroups = 2;
  static constexpr bool kWide = false, kHasMinimum = false;
  template <int M>
  static ivec codes(const std::uint8_t* block, int p, int v) {
    const std::uint8_t* piece = block + kHead + p * (kCodes2 + kCodes4);
    return or_bits(load_codes4<M>(piece + kCodes2, v), load_codes2<M>(piece, v));
  }
  static vec scale(const std::uint8_t* block, int p, int s, int v) {
    return mul(load_half(block + v * 2 * kLanes),
               load_signed(block + kHalves + (2 * p + s) * kPanel + v * kLanes));
  }
  static vec minimum(const std::uint8_t*, int, int) { return zero(); }
};

// What is added to scale * code: exact, since the offset is a small integer or a power of two.
template <class F>
inline vec shift_of(const std::uint8_t* block, int piece, vec scale, int v) {
  if constexpr (F::kHasMinimum) return F::minimum(block, piece, v);
  return mul(scale, broadcast(-static_cast<float>(F::kOffset)));
}

// Piece `piece` of a block as floats: out[k][16], rounded once from the exact weight.
template <class F>
inline void decode_piece(const std::uint8_t* block, int piece, float* out) {
  for (int v = 0; v < kVecsPerPanel; ++v) {
    vec scale = F::scale(block, piece, 0, v);
    vec shift = shift_of<F>(block, piece, scale, v);
    const auto four = [&](ivec codes, float* target) {
      store(target, fma(to_float(byte_of<0>(codes)), scale, shift));
      store(target + kPanel, fma(to_float(byte_of<1>(codes)), scale, shift));
      store(target + 2 * kPanel, fma(to_float(byte_of<2>(codes)), scale, shift));
      store(target + 3 * kPanel, fma(to_float(byte_of<3>(codes)), scale, shift));
    };
    float* target = out + v * kLanes;
    four(F::template codes<0>(block, piece, v), target);
    four(F::template codes<1>(block, piece, v), target + 4 * kPanel);
    four(F::template codes<2>(block, piece, v), target + 8 * kPanel);
    four(F::template codes<3>(block, piece, v), target + 12 * kPanel);
    if constexpr (F::kSubgroups == 2) {
      scale = F::scale(block, piece, 1, v);
      shift = shift_of<F>(block, piece, scale, v);
    }
    four(F::template codes<4>(block, piece, v), target + 16 * kPanel);
    four(F::template codes<5>(block, piece, v), target + 20 * kPanel);
    four(F::template codes<6>(block, piece, v), target + 24 * kPanel);
    four(F::template codes<7>(block, piece, v), target + 28 * kPanel);
  }
}

// The numbers by which operators name formats; those from q4_0 on are quantised.
enum Format : std::int64_t {
  kFloat32, kBfloat16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kNumFormats
};

struct FormatInfo {
  const char* name;
  int group;  // values of k in a block; 0 for floats
  int bytes;  // of a block of one panel
};

inline const FormatInfo& format_info(std::int64_t format) {
  static constexpr FormatInfo infos[kNumFormats] = {
      {"float32", 0, 0},
      {"bfloat16", 0, 0},
      {"q4_0", Q4_0::kGroup, Q4_0::kBytes},
      {"q4_1", Q4_1::kGroup, Q4_1::kBytes},
      {"q5_0", Q5_0::kGroup, Q5_0::kBytes},
      {"q5_1", Q5_1::kGroup, Q5_1::kBytes},
      {"q8_0", Q8_0::kGroup, Q8_0::kBytes},
      {"q4_k", Q4_K::kGroup, Q4_K::kBytes},
      {"q5_k", Q5_K::kGroup, Q5_K::kBytes},
      {"q6_k", Q6_K::kGroup, Q6_K::kBytes},
  };
  return infos[format];
}

// call(F{}) for the quantised format of that number.
template <class Call>
inline void with_format(std::int64_t format, const Call& call) {
  switch (format) {
    case kQ4_0: return call(Q4_0{});
    case kQ4_1: return call(Q4_1{});
    case kQ5_0: return call(Q5_0{});
    case kQ5_1: return call(Q5_1{});
    case kQ8_0: return call(Q8_0{});
    case kQ4_K: return call(Q4_K{});
    case kQ5_K: return call(Q5_K{});
    case kQ6_K: return call(Q6_K{});
    default: return;
  }
}

}  // namespace ygg
