// Row copies inside one KV cache [heads][slots][size].
#pragma once

#include <cstdint>
#include <cstring>

namespace ygg {

// cache[h][slots[v]] = rows[h][v]; rows has strides in elements, its last dimension is dense.
inline void write_rows(float* cache, std::int64_t num_heads, std::int64_t num_slots,
                       std::int64_t size, const float* rows, std::int64_t head_stride,
                       std::int64_t row_stride, const std::int64_t* slots, std::int64_t num_rows) {
  for (std::int64_t h = 0; h < num_heads; ++h) {
    for (std::int64_t v = 0; v < num_rows; ++v) {
      std::memcpy(cache + (h * num_slots + slots[v]) * size,
                  rows + h * head_stride + v * row_stride,
                  sizeof(float) * static_cast<std::size_t>(size));
    }
  }
}

// cache[h][targets[i]] = old cache[h][sources[i]] for all i; `buffer` holds num_moves * size
// floats.
inline void move_rows(float* cache, std::int64_t num_heads, std::int64_t num_slots,
                      std::int64_t size, const std::int64_t* sources, const std::int64_t* targets,
                      std::int64_t num_moves, float* buffer) {
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(size);
  for (std::int64_t h = 0; h < num_heads; ++h) {
    float* head = cache + h * num_slots * size;
    for (std::int64_t i = 0; i < num_moves; ++i) {
      std::memcpy(buffer + i * size, head + sources[i] * size, bytes);
    }
    for (std::int64_t i = 0; i < num_moves; ++i) {
      std::memcpy(head + targets[i] * size, buffer + i * size, bytes);
    }
  }
}

}  // namespace ygg
