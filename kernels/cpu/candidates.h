// The most likely tokens of a row of logits and their shares, without a sorted or normalised row.
#pragma once

#include <cstdint>

#include "vec.h"

namespace ygg {

// The sum of exp((x - shift) / temperature).
inline float sum_exp(const float* x, std::int64_t num, float shift, float temperature) {
  vec sums = zero();
  const vec offset = broadcast(shift), scale = broadcast(1.0f / temperature);
  std::int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    sums = add(sums, exp(mul(sub(load(x + i), offset), scale)));
  }
  float lanes[kLanes];
  store(lanes, sums);
  float total = 0.0f;
  for (float lane : lanes) total += lane;
  for (; i < num; ++i) total += exp((x[i] - shift) / temperature);
  return total;
}

// Writes the places of the `count` largest values, 1 <= count <= num, largest first and the lower
// place first among equals, and their shares in a softmax at `temperature`.
inline void top_shares(const float* x, std::int64_t num, float temperature, std::int64_t count,
                       std::int64_t* places, float* shares) {
  // Until they are shares they are the values.
  std::int64_t kept = 0;
  const auto offer = [&](std::int64_t place) {
    const float value = x[place];
    if (kept == count && !(value > shares[count - 1])) return;
    std::int64_t at = kept < count ? kept++ : count - 1;
    for (; at > 0 && value > shares[at - 1]; --at) {
      shares[at] = shares[at - 1];
      places[at] = places[at - 1];
    }
    shares[at] = value;
    places[at] = place;
  };
  std::int64_t i = 0;
  for (; i < num && kept < count; ++i) offer(i);
  constexpr std::int64_t kBlock = 4 * kLanes;
  for (; i + kBlock <= num; i += kBlock) {
    const vec most = max(max(load(x + i), load(x + i + kLanes)),
                         max(load(x + i + 2 * kLanes), load(x + i + 3 * kLanes)));
    if (!(largest_lane(most) > shares[count - 1])) continue;
    for (std::int64_t j = i; j < i + kBlock; ++j) offer(j);
  }
  for (; i < num; ++i) offer(i);
  const float best = shares[0];
  const float total = sum_exp(x, num, best, temperature);
  for (std::int64_t k = 0; k < count; ++k) {
    shares[k] = exp((shares[k] - best) / temperature) / total;
  }
}

}  // namespace ygg
