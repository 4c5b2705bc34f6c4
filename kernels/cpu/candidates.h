// The most likely tokens of a row of logits and their shares, without a sorted or normalised row.
// The largest of a row alone, as torch has it.
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

// The place of the first of the largest values, num >= 1; of the first NaN if there is one.
inline std::int64_t argmax(const float* x, std::int64_t num) {
  std::int64_t place = 0;
  const auto offer = [&](std::int64_t i) {
    if (x[i] > x[place] || (x[i] != x[i] && x[place] == x[place])) place = i;
  };
  std::int64_t i = 0;
  constexpr std::int64_t kBlock = 4 * kLanes;
  for (; i + kBlock <= num; i += kBlock) {
    const vec a = load(x + i), b = load(x + i + kLanes);
    const vec c = load(x + i + 2 * kLanes), d = load(x + i + 3 * kLanes);
    // A sum without NaN has no NaN in it; one with may come of infinities.
    if (!has_nan(add(add(a, b), add(c, d))) &&
        !(largest_lane(max(max(a, b), max(c, d))) > x[place])) {
      continue;
    }
    for (std::int64_t j = i; j < i + kBlock; ++j) offer(j);
  }
  for (; i < num; ++i) offer(i);
  return place;
}

}  // namespace ygg
