// Where work memory of threads lies.
//
// A core fetches ahead of what it reads, to the end of the page and into the next one. If another
// core writes there, the lines go back and forth between them with every write. So the work memory
// of a thread begins on a page of its own, with a page before it.
#pragma once

#include <cstdint>

namespace ygg {

constexpr std::int64_t kPageBytes = 4096;

inline std::int64_t whole_pages(std::int64_t num_bytes) {
  return (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}
// Where another thread's memory may begin behind `size` bytes or floats.
inline std::int64_t bytes_apart(std::int64_t size) { return whole_pages(size) + kPageBytes; }
inline std::int64_t floats_apart(std::int64_t size) {
  constexpr std::int64_t width = sizeof(float);
  return bytes_apart(size * width) / width;
}

}  // namespace ygg
