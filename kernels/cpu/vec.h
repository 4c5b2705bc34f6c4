// One native float vector: AVX-512 (16 lanes), AVX2 with FMA (8) or NEON (4). Every function
// rounds once, as IEEE-754 says, so lanes hold the same bits on every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ygg {

using bf16 = std::uint16_t;

#if defined(__x86_64__) && defined(__AVX2__)

// out[c][r] = in[r][c] for a square of kSquare x kSquare floats.
constexpr int kSquare = 8;
inline void transpose_square(const float* in, std::int64_t in_stride, float* out,
                             std::int64_t out_stride) {
  __m256 a[8];
  __m256 b[8];
  for (int r = 0; r < 4; ++r) {
    // Rows r and r + 4 side by side: what is left is a transposition within 128-bit halves.
    const float* low = in + r * in_stride;
    const float* high = in + (r + 4) * in_stride;
    a[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
    a[r + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low + 4)),
                                    _mm_loadu_ps(high + 4), 1);
  }
  for (int h = 0; h < 8; h += 4) {
    b[h] = _mm256_unpacklo_ps(a[h], a[h + 1]);
    b[h + 1] = _mm256_unpackhi_ps(a[h], a[h + 1]);
    b[h + 2] = _mm256_unpacklo_ps(a[h + 2], a[h + 3]);
    b[h + 3] = _mm256_unpackhi_ps(a[h + 2], a[h + 3]);
    _mm256_storeu_ps(out + h * out_stride, _mm256_shuffle_ps(b[h], b[h + 2], 0x44));
    _mm256_storeu_ps(out + (h + 1) * out_stride, _mm256_shuffle_ps(b[h], b[h + 2], 0xEE));
    _mm256_storeu_ps(out + (h + 2) * out_stride, _mm256_shuffle_ps(b[h + 1], b[h + 3], 0x44));
    _mm256_storeu_ps(out + (h + 3) * out_stride, _mm256_shuffle_ps(b[h + 1], b[h + 3], 0xEE));
  }
}

inline float largest_lane(__m256 a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

using vec = __m512;
constexpr int kLanes = 16;

inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
inline vec zero() { return _mm512_setzero_ps(); }
inline vec broadcast(float a) { return _mm512_set1_ps(a); }
inline vec load(const float* p) { return _mm512_loadu_ps(p); }
inline vec load(const bf16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
// Of kLanes pairs the first and the second values.
inline vec load_evens(const bf16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
inline vec load_odds(const bf16* p) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
}
inline vec load_first(const float* p, int count) {
  return _mm512_maskz_loadu_ps(first_lanes(count), p);
}
inline void store(float* p, vec a) { _mm512_storeu_ps(p, a); }
inline void store_first(float* p, vec a, int count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), a);
}
inline vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
inline vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
inline vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
inline vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
inline vec div(vec a, vec b) { return _mm512_div_ps(a, b); }
inline vec max(vec a, vec b) { return _mm512_max_ps(a, b); }
inline vec abs(vec a) { return _mm512_abs_ps(a); }
inline vec with_sign_of(vec magnitude, vec sign) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(magnitude),
                                             _mm512_and_si512(_mm512_castps_si512(sign), mask)));
}
inline vec if_less(vec a, vec b, vec yes, vec no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
// a * 2^n, where the low bits of `shifted` hold n (see exp below); no overflow is handled.
inline vec add_exponent(vec a, vec shifted) {
  return _mm512_castsi512_ps(_mm512_add_epi32(
      _mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

// Two floats over and over.
inline vec broadcast_pair(const float* p) {
  double pair;
  std::memcpy(&pair, p, sizeof pair);
  return _mm512_castpd_ps(_mm512_set1_pd(pair));
}
// Of every four lanes: a0 + a1, a2 + a3, b0 + b1, b2 + b3.
inline vec add_neighbours(vec a, vec b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
}
// Of every four lanes the upper two and the lower two change places.
inline vec swap_pairs(vec a) { return _mm512_shuffle_ps(a, a, 0x4E); }

inline float largest_lane(vec a) {
  return largest_lane(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}

using ivec = __m512i;

inline ivec izero() { return _mm512_setzero_si512(); }
inline ivec ibroadcast(std::int32_t a) { return _mm512_set1_epi32(a); }
inline ivec iload(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
inline ivec iadd(ivec a, ivec b) { return _mm512_add_epi32(a, b); }
inline ivec and_bits(ivec a, ivec b) { return _mm512_and_si512(a, b); }
inline ivec or_bits(ivec a, ivec b) { return _mm512_or_si512(a, b); }
inline ivec xor_bits(ivec a, ivec b) { return _mm512_xor_si512(a, b); }
template <int N>
inline ivec shift_left(ivec a) {
  return _mm512_slli_epi32(a, N);
}
template <int N>
inline ivec shift_right(ivec a) {
  return _mm512_srli_epi32(a, N);
}
inline vec to_float(ivec a) { return _mm512_cvtepi32_ps(a); }
// Byte B of every lane as an unsigned number.
template <int B>
inline ivec byte_of(ivec a) {
  const __m512i pick = _mm512_broadcast_i32x4(
      _mm_set_epi32(0x8080800C + B, 0x80808008 + B, 0x80808004 + B, 0x80808000 + B));
  return _mm512_shuffle_epi8(a, pick);
}
// 16 in every byte whose bit is set; one bit a byte.
inline ivec sixteen_where(const std::uint8_t* bits) {
  std::uint64_t mask;
  std::memcpy(&mask, bits, sizeof mask);
  return _mm512_maskz_set1_epi8(mask, 16);
}
// IEEE half floats, bytes (unsigned, signed), one a lane.
inline vec load_half(const std::uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline vec load_unsigned(const std::uint8_t* p) {
  return to_float(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline vec load_signed(const std::uint8_t* p) {
  return to_float(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// a[lane] + sum over the lane's four bytes of code * x; codes below 128.
#if defined(__AVX512VNNI__)
inline ivec add_dot(ivec a, ivec codes, ivec x) { return _mm512_dpbusd_epi32(a, codes, x); }
#else
inline ivec add_dot(ivec a, ivec codes, ivec x) {
  return iadd(a, _mm512_madd_epi16(_mm512_maddubs_epi16(codes, x), _mm512_set1_epi16(1)));
}
#endif
// Rounds to the nearest integer, ties to even.
inline ivec to_int(vec a) { return _mm512_cvtps_epi32(a); }
inline std::int32_t sum_lanes(ivec a) { return _mm512_reduce_add_epi32(a); }
inline bool has_nan(vec a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
// The low byte of every lane.
inline void store_bytes(std::int8_t* p, ivec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}

#elif defined(__AVX2__) && defined(__FMA__)

using vec = __m256;
constexpr int kLanes = 8;

inline __m256i first_lanes(int count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
}
inline vec zero() { return _mm256_setzero_ps(); }
inline vec broadcast(float a) { return _mm256_set1_ps(a); }
inline vec load(const float* p) { return _mm256_loadu_ps(p); }
inline vec load(const bf16* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline vec load_evens(const bf16* p) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
inline vec load_odds(const bf16* p) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
}
inline vec load_first(const float* p, int count) {
  return _mm256_maskload_ps(p, first_lanes(count));
}
inline void store(float* p, vec a) { _mm256_storeu_ps(p, a); }
inline void store_first(float* p, vec a, int count) {
  _mm256_maskstore_ps(p, first_lanes(count), a);
}
inline vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
inline vec add(vec a, vec b) { return _mm256_add_ps(a, b); }
inline vec sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
inline vec mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
inline vec div(vec a, vec b) { return _mm256_div_ps(a, b); }
inline vec max(vec a, vec b) { return _mm256_max_ps(a, b); }
inline vec abs(vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline vec with_sign_of(vec magnitude, vec sign) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
inline vec if_less(vec a, vec b, vec yes, vec no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
inline vec add_exponent(vec a, vec shifted) {
  return _mm256_castsi256_ps(_mm256_add_epi32(
      _mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

inline vec broadcast_pair(const float* p) {
  double pair;
  std::memcpy(&pair, p, sizeof pair);
  return _mm256_castpd_ps(_mm256_set1_pd(pair));
}
inline vec add_neighbours(vec a, vec b) {
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xDD));
}
inline vec swap_pairs(vec a) { return _mm256_shuffle_ps(a, a, 0x4E); }

using ivec = __m256i;

inline ivec izero() { return _mm256_setzero_si256(); }
inline ivec ibroadcast(std::int32_t a) { return _mm256_set1_epi32(a); }
inline ivec iload(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline ivec iadd(ivec a, ivec b) { return _mm256_add_epi32(a, b); }
inline ivec and_bits(ivec a, ivec b) { return _mm256_and_si256(a, b); }
inline ivec or_bits(ivec a, ivec b) { return _mm256_or_si256(a, b); }
inline ivec xor_bits(ivec a, ivec b) { return _mm256_xor_si256(a, b); }
template <int N>
inline ivec shift_left(ivec a) {
  return _mm256_slli_epi32(a, N);
}
template <int N>
inline ivec shift_right(ivec a) {
  return _mm256_srli_epi32(a, N);
}
inline vec to_float(ivec a) { return _mm256_cvtepi32_ps(a); }
template <int B>
inline ivec byte_of(ivec a) {
  const __m256i pick = _mm256_broadcastsi128_si256(
      _mm_set_epi32(0x8080800C + B, 0x80808008 + B, 0x80808004 + B, 0x80808000 + B));
  return _mm256_shuffle_epi8(a, pick);
}
inline ivec sixteen_where(const std::uint8_t* bits) {
  std::int32_t mask;
  std::memcpy(&mask, bits, sizeof mask);
  // Each byte gets the byte of the mask that holds its bit, and keeps that bit alone.
  const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  const __m256i found = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(mask), spread), bit);
  return _mm256_and_si256(_mm256_cmpeq_epi8(found, bit), _mm256_set1_epi8(16));
}
inline vec load_half(const std::uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline vec load_unsigned(const std::uint8_t* p) {
  return to_float(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline vec load_signed(const std::uint8_t* p) {
  return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline ivec add_dot(ivec a, ivec codes, ivec x) {
  return iadd(a, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
}
inline ivec to_int(vec a) { return _mm256_cvtps_epi32(a); }
inline std::int32_t sum_lanes(ivec a) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}
inline bool has_nan(vec a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
inline void store_bytes(std::int8_t* p, ivec a) {
  const __m256i pick = _mm256_set1_epi32(0x0C080400);
  const __m256i bytes = _mm256_shuffle_epi8(a, pick);
  const int low = _mm256_extract_epi32(bytes, 0);
  const int high = _mm256_extract_epi32(bytes, 4);
  std::memcpy(p, &low, sizeof low);
  std::memcpy(p + sizeof low, &high, sizeof high);
}

#elif defined(__aarch64__)

using vec = float32x4_t;
constexpr int kLanes = 4;

inline vec zero() { return vdupq_n_f32(0.0f); }
inline vec broadcast(float a) { return vdupq_n_f32(a); }
inline vec load(const float* p) { return vld1q_f32(p); }
inline vec load(const bf16* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline uint32x4_t load_pairs(const bf16* p) {
  uint32x4_t pairs;
  std::memcpy(&pairs, p, sizeof pairs);
  return pairs;
}
inline vec load_evens(const bf16* p) {
  return vreinterpretq_f32_u32(vshlq_n_u32(load_pairs(p), 16));
}
inline vec load_odds(const bf16* p) {
  return vreinterpretq_f32_u32(vandq_u32(load_pairs(p), vdupq_n_u32(0xFFFF0000u)));
}
inline vec load_first(const float* p, int count) {
  float lanes[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  std::memcpy(lanes, p, sizeof(float) * static_cast<std::size_t>(count));
  return vld1q_f32(lanes);
}
inline void store(float* p, vec a) { vst1q_f32(p, a); }
inline void store_first(float* p, vec a, int count) {
  float lanes[4];
  vst1q_f32(lanes, a);
  std::memcpy(p, lanes, sizeof(float) * static_cast<std::size_t>(count));
}
inline vec fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
inline vec add(vec a, vec b) { return vaddq_f32(a, b); }
inline vec sub(vec a, vec b) { return vsubq_f32(a, b); }
inline vec mul(vec a, vec b) { return vmulq_f32(a, b); }
inline vec div(vec a, vec b) { return vdivq_f32(a, b); }
inline vec max(vec a, vec b) { return vmaxq_f32(a, b); }
inline vec abs(vec a) { return vabsq_f32(a); }
inline vec with_sign_of(vec magnitude, vec sign) {
  return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
}
inline vec if_less(vec a, vec b, vec yes, vec no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }
inline vec add_exponent(vec a, vec shifted) {
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a),
                                         vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23)));
}

inline vec broadcast_pair(const float* p) {
  const float32x2_t pair = vld1_f32(p);
  return vcombine_f32(pair, pair);
}
inline vec add_neighbours(vec a, vec b) { return vaddq_f32(vuzp1q_f32(a, b), vuzp2q_f32(a, b)); }
inline vec swap_pairs(vec a) { return vextq_f32(a, a, 2); }

inline float largest_lane(vec a) { return vmaxvq_f32(a); }

using ivec = int32x4_t;

inline ivec izero() { return vdupq_n_s32(0); }
inline ivec ibroadcast(std::int32_t a) { return vdupq_n_s32(a); }
inline ivec iload(const std::uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
inline ivec iadd(ivec a, ivec b) { return vaddq_s32(a, b); }
inline ivec and_bits(ivec a, ivec b) { return vandq_s32(a, b); }
inline ivec or_bits(ivec a, ivec b) { return vorrq_s32(a, b); }
inline ivec xor_bits(ivec a, ivec b) { return veorq_s32(a, b); }
template <int N>
inline ivec shift_left(ivec a) {
  return vshlq_n_s32(a, N);
}
template <int N>
inline ivec shift_right(ivec a) {
  if constexpr (N == 0) return a;
  return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), N == 0 ? 1 : N));
}
inline vec to_float(ivec a) { return vcvtq_f32_s32(a); }
template <int B>
inline ivec byte_of(ivec a) {
  return and_bits(shift_right<8 * B>(a), ibroadcast(255));
}
inline ivec sixteen_where(const std::uint8_t* bits) {
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
  const uint8x16_t spread = vcombine_u8(vdup_n_u8(bits[0]), vdup_n_u8(bits[1]));
  return vreinterpretq_s32_u8(vandq_u8(vtstq_u8(spread, bit), vdupq_n_u8(16)));
}
inline vec load_half(const std::uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
inline vec load_unsigned(const std::uint8_t* p) {
  std::uint32_t four;
  std::memcpy(&four, p, sizeof four);
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}
inline vec load_signed(const std::uint8_t* p) {
  std::uint32_t four;
  std::memcpy(&four, p, sizeof four);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}
#if defined(__ARM_FEATURE_DOTPROD)
inline ivec add_dot(ivec a, ivec codes, ivec x) {
  return vdotq_s32(a, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
}
#else
inline ivec add_dot(ivec a, ivec codes, ivec x) {
  const int8x16_t c = vreinterpretq_s8_s32(codes);
  const int8x16_t y = vreinterpretq_s8_s32(x);
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(c), vget_low_s8(y)));
  const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(c), vget_high_s8(y)));
  return vaddq_s32(a, vpaddq_s32(low, high));
}
#endif
inline ivec to_int(vec a) { return vcvtnq_s32_f32(a); }
inline std::int32_t sum_lanes(ivec a) { return vaddvq_s32(a); }
inline bool has_nan(vec a) { return vminvq_u32(vceqq_f32(a, a)) == 0; }
inline void store_bytes(std::int8_t* p, ivec a) {
  const int8x8_t bytes = vmovn_s16(vcombine_s16(vmovn_s32(a), vmovn_s32(a)));
  vst1_lane_s32(reinterpret_cast<std::int32_t*>(p), vreinterpret_s32_s8(bytes), 0);
}

constexpr int kSquare = 4;
inline void transpose_square(const float* in, std::int64_t in_stride, float* out,
                             std::int64_t out_stride) {
  const float32x4x2_t a = vtrnq_f32(vld1q_f32(in), vld1q_f32(in + in_stride));
  const float32x4x2_t b =
      vtrnq_f32(vld1q_f32(in + 2 * in_stride), vld1q_f32(in + 3 * in_stride));
  for (int h = 0; h < 2; ++h) {
    vst1q_f32(out + h * out_stride, vcombine_f32(vget_low_f32(a.val[h]), vget_low_f32(b.val[h])));
    vst1q_f32(out + (h + 2) * out_stride,
              vcombine_f32(vget_high_f32(a.val[h]), vget_high_f32(b.val[h])));
  }
}

#else
#error "build for AVX-512 (f, bw, dq, vl), for AVX2 with FMA, or for aarch64"
#endif

// a[lane] + sum over the lane's four bytes of code * x; codes up to 255.
#if defined(__AVX512VNNI__)
inline ivec add_wide_dot(ivec a, ivec codes, ivec x) { return add_dot(a, codes, x); }
#else
// In two halves of four bits: sums of two products of whole bytes overflow 16 bits.
inline ivec add_wide_dot(ivec a, ivec codes, ivec x) {
  const ivec nibbles = ibroadcast(0x0F0F0F0F);
  const ivec high = add_dot(izero(), and_bits(shift_right<4>(codes), nibbles), x);
  return iadd(add_dot(a, and_bits(codes, nibbles), x), shift_left<4>(high));
}
#endif

// exp(x) for x <= 0 within one unit in the last place; 0 below -87 (also for -inf), NaN for NaN.
// Cody-Waite reduction to [-ln2/2, ln2/2] and the degree-6 Taylor-like polynomial of Cephes' expf.
inline vec exp(vec x) {
  const vec lowest = broadcast(-87.0f);
  // In this order the maximum of a NaN is a NaN.
  const vec y = max(lowest, x);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const vec magic = broadcast(12582912.0f);
  const vec shifted = fma(y, broadcast(1.44269504088896341f), magic);
  const vec n = sub(shifted, magic);
  vec r = fma(n, broadcast(-0.693359375f), y);
  r = fma(n, broadcast(2.12194440e-4f), r);
  vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, mul(r, r), r);
  p = add(p, broadcast(1.0f));
  // A NaN's bits do not survive the exponent: what is zero times y brings it back.
  return fma(y, zero(), if_less(x, lowest, zero(), add_exponent(p, shifted)));
}

// tanh(x): Cephes' odd polynomial below 0.625, 1 - 2 / (exp(2|x|) + 1) above.
inline vec tanh(vec x) {
  const vec size = abs(x);
  const vec square = mul(x, x);
  vec p = broadcast(-5.70498872745e-3f);
  p = fma(p, square, broadcast(2.06390887954e-2f));
  p = fma(p, square, broadcast(-5.37397155531e-2f));
  p = fma(p, square, broadcast(1.33314422036e-1f));
  p = fma(p, square, broadcast(-3.33332819422e-1f));
  const vec small = fma(mul(p, square), x, x);
  const vec e = exp(mul(size, broadcast(-2.0f)));
  const vec one = broadcast(1.0f);
  const vec large = with_sign_of(div(sub(one, e), add(one, e)), x);
  return if_less(size, broadcast(0.625f), small, large);
}

inline float exp(float x) {
  float lanes[kLanes];
  store(lanes, exp(broadcast(x)));
  return lanes[0];
}

}  // namespace ygg
