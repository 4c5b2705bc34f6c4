// Attention of tree rows over a visible prefix and, per row, its own ancestors.
//
// The keys of a row are one sequence: slots 0..length-1, then the slots of its ancestors in row
// order, itself last. They are reduced in chunks of 64 counted along that sequence (online
// softmax, values in order within a chunk), every score is summed over the head in order, and
// every exponential is the same function. So the bits of a row depend on its query and its own
// keys and values alone, whatever the other rows, the number of rows, the threads or the lanes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "tile.h"

namespace ygg {

constexpr std::int64_t kChunkKeys = 64;
constexpr std::int64_t kBlockQueries = 48;

struct TreeAttention {
  const float* q;  // [num_heads][num_rows][key_size], strides below, last dimension dense
  std::int64_t q_head_stride;
  std::int64_t q_row_stride;
  const float* keys;    // [num_kv_heads][num_slots][key_size]
  const float* values;  // [num_kv_heads][num_slots][value_size]
  float* out;           // [num_rows][num_heads][value_size]
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t num_rows;
  std::int64_t num_slots;
  std::int64_t key_size;
  std::int64_t value_size;
  std::int64_t length;                  // keys that every row sees
  const std::int64_t* positions;        // [num_rows]
  const std::int64_t* ancestors;        // rows that row r sees, ascending: [first[r], first[r + 1])
  const std::int64_t* first_ancestor;   // [num_rows + 1]
  float scale;
  std::int64_t window;  // 0: none; else keys at sequence index > positions[r] - window
  float softcap;        // 0: none

  std::int64_t group() const { return num_heads / num_kv_heads; }
  std::int64_t num_tree_panels() const { return (num_rows + kPanel - 1) / kPanel; }
  std::int64_t padded_value_size() const { return (value_size + kPanel - 1) / kPanel * kPanel; }
};

// The scratch of one thread; all of it lives in one allocation of attention_scratch_floats.
struct AttentionScratch {
  float* queries;      // packed row blocks [key_size][rows of the block]
  float* panels;       // [chunk panels][key_size][16]
  float* tree_scores;  // [kBlockQueries][num_tree_panels * 16]
  float* scores;       // [kBlockQueries][64], scores of a chunk and then its weights
  float* sums;         // [kBlockQueries][padded_value_size]
  float* maxima;       // [kBlockQueries]
  float* totals;       // [kBlockQueries]

  AttentionScratch(const TreeAttention& a, float* memory)
      : queries(memory),
        panels(queries + kBlockQueries * a.key_size),
        tree_scores(panels + kChunkKeys * a.key_size),
        scores(tree_scores + kBlockQueries * a.num_tree_panels() * kPanel),
        sums(scores + kBlockQueries * kChunkKeys),
        maxima(sums + kBlockQueries * a.padded_value_size()),
        totals(maxima + kBlockQueries) {}
};

inline std::int64_t attention_scratch_floats(const TreeAttention& a) {
  return kBlockQueries * (a.key_size + a.num_tree_panels() * kPanel + kChunkKeys +
                          a.padded_value_size() + 2) +
         kChunkKeys * a.key_size;
}

// Keys [count] (dense rows of `size`) to panels [ceil(count / 16)][size][16], zero padded.
inline void pack_keys(const float* keys, std::int64_t count, std::int64_t size, float* panels) {
  for (std::int64_t first = 0; first < count; first += kPanel) {
    float* panel = panels + first * size;
    const float* key = keys + first * size;
    const std::int64_t lanes = std::min<std::int64_t>(kPanel, count - first);
    std::int64_t done = 0;
    if (lanes == kPanel) {
      for (; done + kSquare <= size; done += kSquare) {
        for (int c = 0; c < kPanel; c += kSquare) {
          transpose_square(key + c * size + done, size, panel + done * kPanel + c, kPanel);
        }
      }
    }
    for (std::int64_t d = done; d < size; ++d) {
      for (std::int64_t c = 0; c < kPanel; ++c) {
        panel[d * kPanel + c] = c < lanes ? key[c * size + d] : 0.0f;
      }
    }
  }
}

// Raw products of the packed queries with `num_panels` packed panels: scores[query][panel * 16 +
// lane].
inline void multiply_keys(const float* queries, const RowBlocks& blocks, const float* panels,
                          std::int64_t num_panels, std::int64_t size, float* scores,
                          std::int64_t stride) {
  for (std::int64_t b = 0; b < blocks.num_blocks; ++b) {
    const int rows = blocks.size(b);
    const float* x = queries + blocks.begin(b) * size;
    float* out = scores + blocks.begin(b) * stride;
    const Prefetch nothing{reinterpret_cast<const char*>(x), 0};
    std::int64_t p = 0;
    for (; rows <= kMaxTileRows / 2 && p + 2 <= num_panels; p += 2) {
      tile_for<2, float>(rows)(x, 0, panels + p * size * kPanel, size * kPanel, size,
                               out + p * kPanel, stride, false, nothing);
    }
    for (; p < num_panels; ++p) {
      tile_for<1, float>(rows)(x, 0, panels + p * size * kPanel, 0, size, out + p * kPanel, stride,
                               false, nothing);
    }
  }
}

// One step of the online softmax: scores [64] of a chunk (valid in [begin, end)) become weights,
// the running maximum and total move on. Returns the factor for what was summed before.
inline float soften_chunk(float* scores, std::int64_t begin, std::int64_t end, float scale,
                          float softcap, float* maximum, float* total) {
  constexpr int kVecs = static_cast<int>(kChunkKeys) / kLanes;
  if (begin > 0 || end < kChunkKeys) {
    for (std::int64_t j = 0; j < begin; ++j) scores[j] = 0.0f;
    for (std::int64_t j = end; j < kChunkKeys; ++j) scores[j] = 0.0f;
  }
  vec s[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    s[v] = mul(load(scores + v * kLanes), broadcast(scale));
    if (softcap != 0.0f) {
      s[v] = mul(tanh(div(s[v], broadcast(softcap))), broadcast(softcap));
    }
  }
  if (begin > 0 || end < kChunkKeys) {
    const float lowest = -std::numeric_limits<float>::infinity();
    for (int v = 0; v < kVecs; ++v) store(scores + v * kLanes, s[v]);
    for (std::int64_t j = 0; j < begin; ++j) scores[j] = lowest;
    for (std::int64_t j = end; j < kChunkKeys; ++j) scores[j] = lowest;
    for (int v = 0; v < kVecs; ++v) s[v] = load(scores + v * kLanes);
  }
  vec largest = s[0];
  for (int v = 1; v < kVecs; ++v) largest = max(largest, s[v]);
  const float next = std::max(*maximum, largest_lane(largest));
  const float factor = exp(*maximum - next);
  // 16 sums over the four quarters of the chunk, which is the same for every lane count.
  vec sums[kVecsPerPanel];
  for (int v = 0; v < kVecsPerPanel; ++v) sums[v] = zero();
  for (int v = 0; v < kVecs; ++v) {
    const vec weight = exp(sub(s[v], broadcast(next)));
    store(scores + v * kLanes, weight);
    sums[v % kVecsPerPanel] = add(sums[v % kVecsPerPanel], weight);
  }
  *total = *total * factor + add_sixteen(sums);
  *maximum = next;
  return factor;
}

// sums[q][0 .. R queries) += weights[q][j] * values[j] for j in order; V vectors wide, the last
// one `tail` lanes.
template <int Q, int V>
void add_values(const float* weights, const float* values, std::int64_t value_stride,
                std::int64_t count, float* sums, std::int64_t sum_stride, int tail) {
  vec acc[Q][V];
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[q][v] = load(sums + q * sum_stride + v * kLanes);
  }
  for (std::int64_t j = 0; j < count; ++j) {
    const float* row = values + j * value_stride;
    vec value[V];
#pragma GCC unroll 8
    for (int v = 0; v < V - 1; ++v) value[v] = load(row + v * kLanes);
    value[V - 1] = tail == kLanes ? load(row + (V - 1) * kLanes)
                                  : load_first(row + (V - 1) * kLanes, tail);
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      const vec weight = broadcast(weights[q * kChunkKeys + j]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[q][v] = fma(weight, value[v], acc[q][v]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sums + q * sum_stride + v * kLanes, acc[q][v]);
  }
}

// Q x 4 vectors is the largest tile that 16 registers hold.
constexpr int kValueQueries = kLanes == 8 ? 2 : 4;
constexpr int kValueVecs = 4;

// The same for Q queries and any width.
template <int Q>
void add_value_rows(const float* weights, const float* values, std::int64_t size,
                    std::int64_t count, float* sums, std::int64_t sum_stride) {
  std::int64_t d = 0;
  for (; d + kValueVecs * kLanes <= size; d += kValueVecs * kLanes) {
    add_values<Q, kValueVecs>(weights, values + d, size, count, sums + d, sum_stride, kLanes);
  }
  for (; d < size; d += kLanes) {
    const int tail = static_cast<int>(std::min<std::int64_t>(kLanes, size - d));
    add_values<Q, 1>(weights, values + d, size, count, sums + d, sum_stride, tail);
  }
}

using ValueFunction = void (*)(const float*, const float*, std::int64_t, std::int64_t, float*,
                               std::int64_t);

template <std::size_t... I>
constexpr std::array<ValueFunction, sizeof...(I)> value_functions(std::index_sequence<I...>) {
  return {&add_value_rows<static_cast<int>(I) + 1>...};
}

// add_value_rows for 1..kValueQueries queries.
inline ValueFunction add_values_for(std::int64_t num_queries) {
  static constexpr auto functions = value_functions(std::make_index_sequence<kValueQueries>{});
  return functions[static_cast<std::size_t>(num_queries - 1)];
}

// Queries [begin, end) of one kv head, at most kBlockQueries; query i is row i / group, head i %
// group.
class QueryBlock {
 public:
  QueryBlock(const TreeAttention& a, const AttentionScratch& s, std::int64_t kv_head,
             std::int64_t begin, std::int64_t end)
      : a_(a),
        s_(s),
        begin_(begin),
        num_(end - begin),
        blocks_(end - begin),
        head_(kv_head * a.group()),
        keys_(a.keys + kv_head * a.num_slots * a.key_size),
        values_(a.values + kv_head * a.num_slots * a.value_size) {}

  void run() {
    prepare();
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < num_; ++i) {
      first = std::min(first, first_key(i));
      last = std::max(last, num_keys(i));
    }
    for (std::int64_t c = first / kChunkKeys * kChunkKeys; c < last; c += kChunkKeys) {
      score_prefix(c, first);
      for (std::int64_t i = 0; i < num_; ++i) soften(i, c);
      add_prefix(c);
      add_ancestors(c);
    }
    finish();
  }

 private:
  std::int64_t row(std::int64_t i) const { return (begin_ + i) / a_.group(); }
  std::int64_t head(std::int64_t i) const { return head_ + (begin_ + i) % a_.group(); }
  std::int64_t num_keys(std::int64_t i) const {
    return a_.length + a_.first_ancestor[row(i) + 1] - a_.first_ancestor[row(i)];
  }
  // The first key inside the window; a row always sees itself.
  std::int64_t first_key(std::int64_t i) const {
    if (a_.window == 0) return 0;
    const std::int64_t start = a_.positions[row(i)] - a_.window + 1;
    return std::clamp<std::int64_t>(start, 0, std::max<std::int64_t>(num_keys(i) - 1, 0));
  }
  std::int64_t slot(std::int64_t i, std::int64_t key) const {
    return a_.length + a_.ancestors[a_.first_ancestor[row(i)] + key - a_.length];
  }
  // Visible keys of chunk c, relative to it: [chunk_begin, chunk_end).
  std::int64_t chunk_begin(std::int64_t i, std::int64_t c) const {
    return std::max<std::int64_t>(first_key(i) - c, 0);
  }
  std::int64_t chunk_end(std::int64_t i, std::int64_t c) const {
    return std::min(num_keys(i) - c, kChunkKeys);
  }
  std::int64_t tree_stride() const { return a_.num_tree_panels() * kPanel; }

  void prepare() {
    for (std::int64_t b = 0; b < blocks_.num_blocks; ++b) {
      const int size = blocks_.size(b);
      for (int r = 0; r < size; ++r) {
        const std::int64_t i = blocks_.begin(b) + r;
        const float* q = a_.q + head(i) * a_.q_head_stride + row(i) * a_.q_row_stride;
        float* packed = s_.queries + blocks_.begin(b) * a_.key_size + r;
        for (std::int64_t d = 0; d < a_.key_size; ++d) packed[d * size] = q[d];
      }
    }
    for (std::int64_t v = 0; v < a_.num_rows; v += kChunkKeys) {
      const std::int64_t count = std::min(kChunkKeys, a_.num_rows - v);
      pack_keys(keys_ + (a_.length + v) * a_.key_size, count, a_.key_size, s_.panels);
      multiply_keys(s_.queries, blocks_, s_.panels, (count + kPanel - 1) / kPanel, a_.key_size,
                    s_.tree_scores + v, tree_stride());
    }
    std::fill(s_.sums, s_.sums + num_ * a_.padded_value_size(), 0.0f);
    std::fill(s_.maxima, s_.maxima + num_, -std::numeric_limits<float>::infinity());
    std::fill(s_.totals, s_.totals + num_, 0.0f);
  }

  void score_prefix(std::int64_t c, std::int64_t first) {
    const std::int64_t begin = std::max<std::int64_t>(first - c, 0) / kPanel * kPanel;
    const std::int64_t end = std::min(a_.length - c, kChunkKeys);
    if (begin >= end) return;
    pack_keys(keys_ + (c + begin) * a_.key_size, end - begin, a_.key_size, s_.panels);
    multiply_keys(s_.queries, blocks_, s_.panels, (end - begin + kPanel - 1) / kPanel,
                  a_.key_size, s_.scores + begin, kChunkKeys);
  }

  void soften(std::int64_t i, std::int64_t c) {
    const std::int64_t begin = chunk_begin(i, c);
    const std::int64_t end = chunk_end(i, c);
    if (begin >= end) return;
    float* scores = s_.scores + i * kChunkKeys;
    for (std::int64_t j = std::max(begin, a_.length - c); j < end; ++j) {
      scores[j] = s_.tree_scores[i * tree_stride() + slot(i, c + j) - a_.length];
    }
    const float factor = soften_chunk(scores, begin, end, a_.scale, a_.softcap, s_.maxima + i,
                                      s_.totals + i);
    if (factor == 1.0f) return;
    float* sums = s_.sums + i * a_.padded_value_size();
    for (std::int64_t d = 0; d < a_.padded_value_size(); d += kLanes) {
      store(sums + d, mul(load(sums + d), broadcast(factor)));
    }
  }

  void add_prefix(std::int64_t c) {
    const std::int64_t end = std::min(a_.length - c, kChunkKeys);
    const std::int64_t stride = a_.padded_value_size();
    for (std::int64_t i = 0; i < num_;) {
      const std::int64_t begin = chunk_begin(i, c);
      // Neighbours share a tile only if they see the same keys: a weight of zero is not nothing.
      std::int64_t together = 1;
      while (together < kValueQueries && i + together < num_ &&
             chunk_begin(i + together, c) == begin) {
        ++together;
      }
      if (begin < end) {
        add_values_for(together)(s_.scores + i * kChunkKeys + begin,
                                 values_ + (c + begin) * a_.value_size, a_.value_size, end - begin,
                                 s_.sums + i * stride, stride);
      }
      i += together;
    }
  }

  void add_ancestors(std::int64_t c) {
    for (std::int64_t i = 0; i < num_; ++i) {
      const std::int64_t end = chunk_end(i, c);
      for (std::int64_t j = std::max(chunk_begin(i, c), a_.length - c); j < end;) {
        // A run of neighbouring slots is one dense matrix.
        std::int64_t run = 1;
        while (j + run < end && slot(i, c + j + run) == slot(i, c + j) + run) ++run;
        add_value_rows<1>(s_.scores + i * kChunkKeys + j,
                          values_ + slot(i, c + j) * a_.value_size, a_.value_size, run,
                          s_.sums + i * a_.padded_value_size(), a_.padded_value_size());
        j += run;
      }
    }
  }

  void finish() {
    for (std::int64_t i = 0; i < num_; ++i) {
      float* out = a_.out + (row(i) * a_.num_heads + head(i)) * a_.value_size;
      const float* sums = s_.sums + i * a_.padded_value_size();
      const bool sees_nothing = num_keys(i) == 0;
      const vec total = broadcast(sees_nothing ? 1.0f : s_.totals[i]);
      for (std::int64_t d = 0; d < a_.value_size; d += kLanes) {
        const int lanes = static_cast<int>(std::min<std::int64_t>(kLanes, a_.value_size - d));
        store_first(out + d, div(load(sums + d), total), lanes);
      }
    }
  }

  const TreeAttention& a_;
  const AttentionScratch& s_;
  std::int64_t begin_;
  std::int64_t num_;
  RowBlocks blocks_;
  std::int64_t head_;
  const float* keys_;
  const float* values_;
};

// Part `part` of `num_parts` of all queries; `memory` is scratch of attention_scratch_floats, one
// per part.
inline void tree_attention_part(const TreeAttention& a, float* memory, std::int64_t part,
                                std::int64_t num_parts) {
  const AttentionScratch scratch(a, memory);
  const std::int64_t per_head = a.group() * a.num_rows;
  const std::int64_t num_queries = a.num_kv_heads * per_head;
  std::int64_t query = num_queries * part / num_parts;
  const std::int64_t end = num_queries * (part + 1) / num_parts;
  while (query < end) {
    const std::int64_t kv_head = query / per_head;
    const std::int64_t begin = query - kv_head * per_head;
    const std::int64_t count =
        std::min({kBlockQueries, per_head - begin, end - query});
    QueryBlock(a, scratch, kv_head, begin, begin + count).run();
    query += count;
  }
}

}  // namespace ygg
