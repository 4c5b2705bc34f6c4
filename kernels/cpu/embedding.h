// Rows of a matrix that is stored in panels: a tied embedding shares the output head's bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.h"

namespace ygg {

inline float to_float(float a) { return a; }
inline float to_float(bf16 a) {
  const std::uint32_t bits = static_cast<std::uint32_t>(a) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// out[k] = row `row` of the packed matrix.
template <class T>
void gather_row(const T* panels, std::int64_t num_k, std::int64_t row, float* out) {
  const T* panel = panels + (row / kPanel) * num_k * kPanel;
  for (std::int64_t k = 0; k < num_k; ++k) {
    out[k] = to_float(panel[place_in_panel<T>(k, row % kPanel, num_k)]);
  }
}

template <class F>
void gather_quantized_row(const std::uint8_t* panels, std::int64_t num_k, std::int64_t row,
                          float* out) {
  const std::uint8_t* block = panels + (row / kPanel) * (num_k / F::kGroup) * F::kBytes;
  float decoded[kPieceK * kPanel];
  for (std::int64_t k = 0; k < num_k; k += F::kGroup) {
    for (int piece = 0; piece < F::kGroup / kPieceK; ++piece) {
      decode_piece<F>(block, piece, decoded);
      for (int i = 0; i < kPieceK; ++i) *out++ = decoded[i * kPanel + row % kPanel];
    }
    block += F::kBytes;
  }
}

// The same for a matrix of any format (a number of `Format`).
inline void gather_row_of(const void* panels, std::int64_t format, std::int64_t num_k,
                          std::int64_t row, float* out) {
  if (format == kFloat32) {
    gather_row(static_cast<const float*>(panels), num_k, row, out);
  } else if (format == kBfloat16) {
    gather_row(static_cast<const bf16*>(panels), num_k, row, out);
  } else {
    with_format(format, [&](auto f) {
      gather_quantized_row<decltype(f)>(static_cast<const std::uint8_t*>(panels), num_k, row, out);
    });
  }
}

}  // namespace ygg
