// KV caches: rows [heads][slots] of float32, bfloat16 or int8, written, moved and widened.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "vec.h"

namespace ygg {

// An int8 row is `size` codes and then one float32 scale: value = code * scale.
enum class KvType { kFloat32, kBfloat16, kInt8 };

struct KvCache {
  const char* data;
  KvType type;
  std::int64_t num_slots;
  std::int64_t size;  // values of a row

  std::int64_t row_bytes() const {
    switch (type) {
      case KvType::kFloat32:
        return size * 4;
      case KvType::kBfloat16:
        return size * 2;
      case KvType::kInt8:
        break;
    }
    return size + 4;
  }
  const char* row(std::int64_t head, std::int64_t slot) const {
    return data + (head * num_slots + slot) * row_bytes();
  }
};

// out[0 .. size) = the values that `read` makes of kLanes elements of `row` at a time.
template <class T, class Read>
void widen_row(const T* row, std::int64_t size, float* out, Read read) {
  std::int64_t d = 0;
  for (; d + kLanes <= size; d += kLanes) store(out + d, read(row + d));
  if (d < size) {
    T rest[kLanes] = {};
    std::memcpy(rest, row + d, sizeof(T) * static_cast<std::size_t>(size - d));
    store_first(out + d, read(rest), static_cast<int>(size - d));
  }
}

// Rows `slot`.. as dense float32 rows: in place where the cache holds such, else in `buffer`,
// which has room for `count` rows.
inline const float* widen_rows(const KvCache& cache, std::int64_t head, std::int64_t slot,
                               std::int64_t count, float* buffer) {
  const char* rows = cache.row(head, slot);
  if (cache.type == KvType::kFloat32) return reinterpret_cast<const float*>(rows);
  const std::int64_t size = cache.size;
  const std::int64_t bytes = cache.row_bytes();
  if (cache.type == KvType::kBfloat16) {
    // Rows of bfloat16 are dense.
    widen_row(reinterpret_cast<const bf16*>(rows), count * size, buffer,
              [](const bf16* p) { return load(p); });
    return buffer;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const char* row = rows + i * bytes;
    float scale;
    std::memcpy(&scale, row + size, sizeof(scale));
    const vec factor = broadcast(scale);
    widen_row(reinterpret_cast<const std::uint8_t*>(row), size, buffer + i * size,
              [factor](const std::uint8_t* p) { return mul(load_signed(p), factor); });
  }
  return buffer;
}

// Round to nearest, ties to even; a NaN stays one.
inline bf16 narrow_to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value) return 0x7FC0;
  return static_cast<bf16>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Codes -127..127 and scale of a row. A row with NaN or infinity decodes to NaN throughout; one
// whose values are all below 4e-37, where 127 / max overflows, to zeros.
inline void quantise_row(const float* row, std::int64_t size, char* out) {
  float largest = 0.0f;
  bool finite = true;
  for (std::int64_t d = 0; d < size; ++d) {
    const float magnitude = std::fabs(row[d]);
    finite = finite && std::isfinite(magnitude);
    largest = magnitude > largest ? magnitude : largest;
  }
  float factor = 127.0f / largest;
  float scale = largest / 127.0f;
  if (!finite || !std::isfinite(factor)) {
    factor = 0.0f;
    scale = finite ? 0.0f : NAN;
  }
  auto* codes = reinterpret_cast<std::int8_t*>(out);
  for (std::int64_t d = 0; d < size; ++d) {
    // Adding 1.5 * 2^23 rounds half to even.
    const float shifted = finite ? row[d] * factor + 12582912.0f : 12582912.0f;
    codes[d] = static_cast<std::int8_t>(static_cast<int>(shifted - 12582912.0f));
  }
  std::memcpy(out + size, &scale, sizeof(scale));
}

// cache[h][slots[v]] = rows[h][v] in the cache's type; rows has strides in elements, its last
// dimension is dense. `data` is the memory of `cache`.
inline void write_rows(char* data, const KvCache& cache, std::int64_t num_heads,
                       const float* rows, std::int64_t head_stride, std::int64_t row_stride,
                       const std::int64_t* slots, std::int64_t num_rows) {
  const std::int64_t bytes = cache.row_bytes();
  for (std::int64_t h = 0; h < num_heads; ++h) {
    for (std::int64_t v = 0; v < num_rows; ++v) {
      char* target = data + (h * cache.num_slots + slots[v]) * bytes;
      const float* row = rows + h * head_stride + v * row_stride;
      if (cache.type == KvType::kFloat32) {
        std::memcpy(target, row, static_cast<std::size_t>(bytes));
      } else if (cache.type == KvType::kBfloat16) {
        auto* out = reinterpret_cast<bf16*>(target);
        for (std::int64_t d = 0; d < cache.size; ++d) out[d] = narrow_to_bf16(row[d]);
      } else {
        quantise_row(row, cache.size, target);
      }
    }
  }
}

// cache[h][targets[i]] = old cache[h][sources[i]] for all i; `buffer` holds num_moves rows.
inline void move_rows(char* cache, std::int64_t num_heads, std::int64_t num_slots,
                      std::int64_t row_bytes, const std::int64_t* sources,
                      const std::int64_t* targets, std::int64_t num_moves, char* buffer) {
  const std::size_t bytes = static_cast<std::size_t>(row_bytes);
  for (std::int64_t h = 0; h < num_heads; ++h) {
    char* head = cache + h * num_slots * row_bytes;
    for (std::int64_t i = 0; i < num_moves; ++i) {
      std::memcpy(buffer + i * row_bytes, head + sources[i] * row_bytes, bytes);
    }
    for (std::int64_t i = 0; i < num_moves; ++i) {
      std::memcpy(head + targets[i] * row_bytes, buffer + i * row_bytes, bytes);
    }
  }
}

}  // namespace ygg
