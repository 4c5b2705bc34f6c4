// Which tokens can win a draw with keyed noise: the hash of yggrt.sampling.noise (SplitMix64:
// Steele, Lea, Flood, OOPSLA 2014) over a whole vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ygg {

// Writes the ids, ascending, of scores that are at least `bound` and of tokens whose noise is in
// the loudest 2^-num_bits (1..31); returns their number. `ids` has room for all `num`.
inline std::int64_t select_loud(const float* scores, std::int64_t num, float bound,
                                std::uint64_t key, int num_bits, std::int64_t* ids) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;
  constexpr std::int64_t kBlock = 256;
  // The hash's last step leaves these upper bits as they are.
  const std::int64_t loud =
      INT64_MAX - static_cast<std::int64_t>((std::uint64_t{1} << (64 - num_bits)) - 1);
  std::int64_t count = 0;
  for (std::int64_t begin = 0; begin < num; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, num - begin);
    std::int64_t in[kBlock];
    std::int64_t any = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      std::uint64_t word = key + static_cast<std::uint64_t>(begin + i + 1) * kGolden;
      word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
      word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
      in[i] = static_cast<std::int64_t>(word) >= loud || scores[begin + i] >= bound;
      any |= in[i];
    }
    for (std::int64_t i = 0; any && i < size; ++i) {
      ids[count] = begin + i;
      count += in[i];
    }
  }
  return count;
}

}  // namespace ygg
