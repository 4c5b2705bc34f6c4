// Rows of a matrix that is stored in panels [ceil(N/16)][K][16]: a tied embedding shares the
// output head's bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "tile.h"

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
  const T* column = panels + (row / kPanel) * num_k * kPanel + row % kPanel;
  for (std::int64_t k = 0; k < num_k; ++k) out[k] = to_float(column[k * kPanel]);
}

}  // namespace ygg
