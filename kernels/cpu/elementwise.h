// Elementwise work that is worth all threads and the widest vectors.
#pragma once

#include <cstdint>

#include "vec.h"

namespace ygg {

// x / (1 + exp(-x)).
inline vec silu(vec x) {
  const vec e = exp(sub(zero(), abs(x)));
  const vec share = div(broadcast(1.0f), add(broadcast(1.0f), e));
  return mul(x, if_less(x, zero(), mul(e, share), share));
}

// out = silu(a) * b, values `begin` to `end`.
inline void silu_mul(const float* a, const float* b, std::int64_t begin, std::int64_t end,
                     float* out) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) store(out + i, mul(silu(load(a + i)), load(b + i)));
  if (i == end) return;
  const int rest = static_cast<int>(end - i);
  store_first(out + i, mul(silu(load_first(a + i, rest)), load_first(b + i, rest)), rest);
}

}  // namespace ygg
