// Attention of tree rows over a visible prefix and, per row, its own ancestors.
//
// The keys of a row are one sequence: slots 0..length-1, then the slots of its ancestors in row
// order, itself last. Fixed places of that sequence, and nothing else, give the order of
// accumulation: it is cut into splits of kSplitKeys, each reduced on its own in chunks of
// kChunkKeys (online softmax, values in order), and the partial results of the splits are merged
// in order. Every exponential is the same function. So the bits of a row depend on its query and its own keys and values alone, whatever
// the other rows, the number of rows, the threads or the lanes.
//
// The lanes of a vector are queries that share a kv head: keys are read as they lie in the cache,
// broadcast two values at a time, and the softmax needs no sums across a whole vector. A score is
// the sum over its even plus the sum over its odd dimensions, each in order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "kv.h"
#include "vec.h"

namespace ygg {

constexpr std::int64_t kChunkKeys = 64;
constexpr std::int64_t kSplitKeys = 256;
constexpr std::int64_t kBlockQueries = 48;

// Below every score, and finite: the difference of two running maxima is never a NaN.
constexpr float kLowestScore = std::numeric_limits<float>::lowest();

struct TreeAttention {
  const float* q;  // [num_heads][num_rows][key_size], strides below, last dimension dense
  std::int64_t q_head_stride;
  std::int64_t q_row_stride;
  KvCache keys;
  KvCache values;
  float* out;  // [num_rows][num_heads][value_size]
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t num_rows;
  std::int64_t num_columns;       // tree rows that a row may see, at least num_rows
  std::int64_t length;            // keys that every row sees
  const std::int64_t* positions;  // [num_rows]
  // What row r sees among the tree's rows (read_runs): 0..runs[r]-1, whose slots go on from the
  // prefix, then ancestors[first_ancestor[r] .. first_ancestor[r + 1]), ascending.
  const std::int64_t* runs;
  const std::int64_t* first_ancestor;
  const std::int64_t* ancestors;
  float scale;
  std::int64_t window;  // 0: none; else keys at sequence index > positions[r] - window
  float softcap;        // 0: none

  std::int64_t group() const { return num_heads / num_kv_heads; }
  std::int64_t num_queries() const { return group() * num_rows; }  // of one kv head
  std::int64_t num_blocks() const { return (num_queries() + kBlockQueries - 1) / kBlockQueries; }
  // Twice the queries of a block, rounded up to whole vectors.
  std::int64_t lanes() const { return (std::min(kBlockQueries, num_queries()) + 7) / 8 * 16; }
  std::int64_t padded_value_size() const { return (values.size + 15) / 16 * 16; }

  std::int64_t num_keys(std::int64_t row) const {
    return length + runs[row] + first_ancestor[row + 1] - first_ancestor[row];
  }
  // The first key inside the window; a row always sees itself.
  std::int64_t first_key(std::int64_t row) const {
    if (window == 0) return 0;
    const std::int64_t start = positions[row] - window + 1;
    return std::clamp<std::int64_t>(start, 0, std::max<std::int64_t>(num_keys(row) - 1, 0));
  }
};

// Calls visit(j) for every true mask[j], begin <= j < end.
template <class Visit>
void visit_true(const bool* mask, std::int64_t begin, std::int64_t end, Visit visit) {
  for (std::int64_t j = begin; j < end;) {
    std::uint64_t eight = 1;
    if (j + 8 <= end) std::memcpy(&eight, mask + j, sizeof(eight));
    if (eight == 0) {
      j += 8;
      continue;
    }
    if (mask[j]) visit(j);
    ++j;
  }
}

// Reads the tree rows that each row sees from mask [num_rows][num_columns] into runs [num_rows] and
// first_ancestor [num_rows + 1]. Returns the number of ancestors behind the runs.
inline std::int64_t read_runs(const bool* mask, std::int64_t num_rows, std::int64_t num_columns,
                              std::int64_t* runs, std::int64_t* first_ancestor) {
  std::int64_t count = 0;
  first_ancestor[0] = 0;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const bool* row = mask + r * num_columns;
    const void* gap = std::memchr(row, 0, static_cast<std::size_t>(num_columns));
    runs[r] = gap == nullptr ? num_columns : static_cast<const bool*>(gap) - row;
    visit_true(row, runs[r], num_columns, [&](std::int64_t) { ++count; });
    first_ancestor[r + 1] = count;
  }
  return count;
}

inline void read_ancestors(const bool* mask, std::int64_t num_rows, std::int64_t num_columns,
                           const std::int64_t* runs, std::int64_t* ancestors) {
  for (std::int64_t r = 0; r < num_rows; ++r) {
    visit_true(mask + r * num_columns, runs[r], num_columns,
               [&](std::int64_t j) { *ancestors++ = j; });
  }
}

// How one call is cut into tasks that any thread may do, in any order: a block of queries of one
// kv head over all of its splits, or, where such blocks are too few to share out, over one split,
// whose partial result is merged in a second phase. The bits are the same.
struct AttentionPlan {
  std::int64_t first_split;
  std::int64_t num_splits;
  std::int64_t num_blocks;  // of all kv heads
  bool by_split;
  // Tasks that a thread takes at a time: it asks for the memory of the next split in advance.
  std::int64_t share;

  AttentionPlan(const TreeAttention& a, std::int64_t num_threads) {
    std::int64_t first = a.first_key(0);
    std::int64_t last = 1;
    for (std::int64_t r = 0; r < a.num_rows; ++r) {
      first = std::min(first, a.first_key(r));
      last = std::max(last, a.num_keys(r));
    }
    first_split = first / kSplitKeys;
    num_splits = (last + kSplitKeys - 1) / kSplitKeys - first_split;
    num_blocks = a.num_kv_heads * a.num_blocks();
    by_split = num_splits > 1 && num_threads > 1 && num_blocks < 4 * num_threads;
    share = by_split ? std::max<std::int64_t>(num_tasks() / (4 * num_threads), 1) : 1;
  }
  std::int64_t num_tasks() const { return by_split ? num_blocks * num_splits : num_blocks; }
  std::int64_t num_merges() const { return by_split ? num_blocks : 0; }
};

// Where a pair of keys has query i: rows of scores and weights are [key / 2][query / 2][key % 2]
// [query % 2], and what belongs to a query alone is there twice, for both keys.
inline std::int64_t place(std::int64_t i) { return i / 2 * 4 + i % 2; }

// The result of a block of queries over one split, or over several that have been merged.
struct AttentionPartial {
  float* maxima;  // [lanes] by place; kLowestScore of a query that sees no key here
  float* totals;  // [lanes] by place; 0 of such a query
  float* sums;    // [queries of the block][padded_value_size]

  AttentionPartial(const TreeAttention& a, float* memory)
      : maxima(memory), totals(maxima + a.lanes()), sums(totals + a.lanes()) {}
  static std::int64_t num_floats(const TreeAttention& a) {
    return a.lanes() * 2 + a.lanes() / 2 * a.padded_value_size();
  }
};

inline std::int64_t partials_floats(const TreeAttention& a, const AttentionPlan& plan) {
  return plan.by_split ? plan.num_tasks() * AttentionPartial::num_floats(a) : 0;
}

// The scratch of one thread; all of it lives in one allocation of num_floats.
struct AttentionScratch {
  float* queries;      // [key_size / 2][query][2], times the scale
  float* scores;       // [kChunkKeys / 2][lanes], scores of a chunk and then its weights
  float* tree_scores;  // [num_columns / 2][lanes], none if no row has ancestors behind its run
  float* factors;      // [lanes]
  float* new_factors;  // [lanes]
  float* wide_keys;    // [kChunkKeys][key_size], none if the cache is float32
  float* wide_values;  // [kChunkKeys][value_size], likewise
  AttentionPartial partial;
  AttentionPartial next;

  AttentionScratch(const TreeAttention& a, float* memory)
      : queries(memory),
        scores(queries + (a.keys.size + 1) / 2 * a.lanes()),
        tree_scores(scores + kChunkKeys / 2 * a.lanes()),
        factors(tree_scores + num_tree_scores(a)),
        new_factors(factors + a.lanes()),
        wide_keys(new_factors + a.lanes()),
        wide_values(wide_keys + num_wide(a.keys)),
        partial(a, wide_values + num_wide(a.values)),
        next(a, wide_values + num_wide(a.values) + AttentionPartial::num_floats(a)) {}
  static std::int64_t num_floats(const TreeAttention& a) {
    return ((a.keys.size + 1) / 2 + kChunkKeys / 2 + 2) * a.lanes() + num_tree_scores(a) +
           num_wide(a.keys) + num_wide(a.values) + 2 * AttentionPartial::num_floats(a);
  }

 private:
  static std::int64_t num_tree_scores(const TreeAttention& a) {
    return a.first_ancestor[a.num_rows] == 0 ? 0 : (a.num_columns + 1) / 2 * a.lanes();
  }
  static std::int64_t num_wide(const KvCache& cache) {
    return cache.type == KvType::kFloat32 ? 0 : kChunkKeys * cache.size;
  }
};

// Tiles that the registers hold: keys x vectors of queries, and queries x vectors of a value.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kKeyTile = 4;
constexpr int kValueVecs = 2;
#else
constexpr int kKeyTile = 8;
constexpr int kValueVecs = 4;
#endif
constexpr int kQueryVecs = 3;
constexpr int kValueQueries = 6;

// Memory that is wanted soon: a row of it for every row that is worked on.
struct Lookahead {
  const char* rows;
  std::int64_t row_bytes;  // 0: nothing is wanted
};

// Scores of K keys, an even number, and V vectors of queries.
template <int K, int V>
void score_tile(const float* queries, std::int64_t lanes, const float* keys, std::int64_t stride,
                std::int64_t size, float* scores, Lookahead ahead) {
  const std::int64_t step = 2 * K * ahead.row_bytes / size;
  vec acc[K][V];
#pragma GCC unroll 8
  for (int k = 0; k < K; ++k) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[k][v] = zero();
  }
  const auto add_pair = [&](auto pair_of_key) {
    vec x[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) x[v] = load(queries + v * kLanes);
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) {
      const vec key = pair_of_key(keys + k * stride);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[k][v] = fma(key, x[v], acc[k][v]);
    }
  };
  for (std::int64_t d = 0; d + 2 <= size; d += 2) {
    __builtin_prefetch(ahead.rows, 0, 2);
    ahead.rows += step;
    add_pair([](const float* key) { return broadcast_pair(key); });
    queries += lanes;
    keys += 2;
  }
  if (size % 2 != 0) {
    add_pair([](const float* key) {
      const float pair[2] = {*key, 0.0f};
      return broadcast_pair(pair);
    });
  }
#pragma GCC unroll 8
  for (int k = 0; k < K; k += 2) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      store(scores + k / 2 * lanes + v * kLanes, add_neighbours(acc[k][v], acc[k + 1][v]));
    }
  }
}

template <int V>
void score_keys(const float* queries, std::int64_t lanes, const float* keys, std::int64_t count,
                std::int64_t size, float* scores, Lookahead ahead) {
  std::int64_t k = 0;
  const auto tile = [&](auto num_keys, std::int64_t stride) {
    constexpr int kKeys = decltype(num_keys)::value;
    score_tile<kKeys, V>(queries, lanes, keys + k * size, stride, size, scores + k / 2 * lanes,
                         {ahead.rows + k * ahead.row_bytes, ahead.row_bytes});
    k += kKeys;
  };
  while (k + kKeyTile <= count) tile(std::integral_constant<int, kKeyTile>{}, size);
  if (k + 4 <= count) tile(std::integral_constant<int, 4>{}, size);
  if (k + 2 <= count) tile(std::integral_constant<int, 2>{}, size);
  // The last one of an odd number is its own neighbour.
  if (k < count) tile(std::integral_constant<int, 2>{}, 0);
}

// Scores of `count` keys and num_vecs vectors of queries; with an odd count one more is written.
inline void multiply_keys(const float* queries, std::int64_t lanes, std::int64_t num_vecs,
                          const float* keys, std::int64_t count, std::int64_t size, float* scores,
                          Lookahead ahead) {
  for (std::int64_t v = 0; v < num_vecs; v += kQueryVecs) {
    const float* x = queries + v * kLanes;
    float* out = scores + v * kLanes;
    switch (std::min<std::int64_t>(kQueryVecs, num_vecs - v)) {
      case 1:
        score_keys<1>(x, lanes, keys, count, size, out, ahead);
        break;
      case 2:
        score_keys<2>(x, lanes, keys, count, size, out, ahead);
        break;
      default:
        score_keys<3>(x, lanes, keys, count, size, out, ahead);
    }
    ahead.row_bytes = 0;
  }
}

// One step of the online softmax for a vector of queries: scores [num_pairs][lanes], an even number
// of pairs of keys, become weights; maximum and total move on. Returns the factor for what was
// summed before.
inline vec soften(float* scores, std::int64_t lanes, std::int64_t num_pairs, float* maximum,
                  float* total) {
  vec largest[2] = {load(scores), load(scores + lanes)};
  for (std::int64_t j = 2; j < num_pairs; j += 2) {
    for (int p = 0; p < 2; ++p) largest[p] = max(largest[p], load(scores + (j + p) * lanes));
  }
  const vec both = max(largest[0], largest[1]);
  const vec before = load(maximum);
  const vec next = max(before, max(both, swap_pairs(both)));
  vec sums[2] = {zero(), zero()};
  for (std::int64_t j = 0; j < num_pairs; j += 2) {
    for (int p = 0; p < 2; ++p) {
      float* score = scores + (j + p) * lanes;
      const vec weight = exp(sub(load(score), next));
      store(score, weight);
      sums[p] = add(sums[p], weight);
    }
  }
  for (int p = 0; p < 2; ++p) sums[p] = add(sums[p], swap_pairs(sums[p]));
  const vec factor = exp(sub(before, next));
  store(maximum, next);
  store(total, fma(load(total), factor, add(sums[0], sums[1])));
  return factor;
}

// sums[q][d] += weight of key j and query q * values[j - begin][d] for j in order; keys begin..
// end-1, Q queries from an even one on, V vectors of d, the last one `tail` lanes.
template <int Q, int V>
void add_values(const float* weights, std::int64_t lanes, std::int64_t begin, std::int64_t end,
                const float* values, std::int64_t value_size, float* sums,
                std::int64_t sum_stride, int tail, Lookahead ahead) {
  vec acc[Q][V];
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[q][v] = load(sums + q * sum_stride + v * kLanes);
  }
  for (std::int64_t j = begin; j < end; ++j) {
    const float* row = values + (j - begin) * value_size;
    const float* own = weights + j / 2 * lanes + j % 2 * 2;
    for (std::int64_t b = 0; b < ahead.row_bytes; b += 64) __builtin_prefetch(ahead.rows + b, 0, 2);
    ahead.rows += ahead.row_bytes;
    vec value[V];
#pragma GCC unroll 8
    for (int v = 0; v < V - 1; ++v) value[v] = load(row + v * kLanes);
    value[V - 1] = tail == kLanes ? load(row + (V - 1) * kLanes)
                                  : load_first(row + (V - 1) * kLanes, tail);
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      const vec weight = broadcast(own[q / 2 * 4 + q % 2]);
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

// The same for any width.
template <int Q>
void add_value_rows(const float* weights, std::int64_t lanes, std::int64_t begin, std::int64_t end,
                    const float* values, std::int64_t size, float* sums, std::int64_t sum_stride,
                    Lookahead ahead) {
  std::int64_t d = 0;
  for (; d + kValueVecs * kLanes <= size; d += kValueVecs * kLanes) {
    add_values<Q, kValueVecs>(weights, lanes, begin, end, values + d, size, sums + d, sum_stride,
                              kLanes, ahead);
    ahead.row_bytes = 0;
  }
  for (; d < size; d += kLanes) {
    const int tail = static_cast<int>(std::min<std::int64_t>(kLanes, size - d));
    add_values<Q, 1>(weights, lanes, begin, end, values + d, size, sums + d, sum_stride, tail,
                     ahead);
    ahead.row_bytes = 0;
  }
}

using ValueFunction = void (*)(const float*, std::int64_t, std::int64_t, std::int64_t,
                               const float*, std::int64_t, float*, std::int64_t, Lookahead);

template <std::size_t... I>
constexpr std::array<ValueFunction, sizeof...(I)> value_functions(std::index_sequence<I...>) {
  return {&add_value_rows<static_cast<int>(I) + 1>...};
}

// add_value_rows for 1..kValueQueries queries.
inline ValueFunction add_values_for(std::int64_t num_queries) {
  static constexpr auto functions = value_functions(std::make_index_sequence<kValueQueries>{});
  return functions[static_cast<std::size_t>(num_queries - 1)];
}

// Block `block` of the queries of one kv head; query i of it is row i / group, head i % group,
// counted from the block's first query.
class QueryBlock {
 public:
  QueryBlock(const TreeAttention& a, const AttentionScratch& s, std::int64_t kv_head,
             std::int64_t block)
      : a_(a),
        s_(s),
        kv_head_(kv_head),
        begin_(block * kBlockQueries),
        num_(std::min(kBlockQueries, a.num_queries() - begin_)),
        num_vecs_((2 * num_ + kLanes - 1) / kLanes),
        lanes_(a.lanes()),
        sum_stride_(a.padded_value_size()) {
    const std::int64_t group = a.group();
    std::int64_t r = begin_ / group;
    std::int64_t head = begin_ % group;
    for (std::int64_t i = 0; i < num_; ++i) {
      row_[i] = r;
      head_[i] = kv_head * group + head;
      first_[i] = a.first_key(r);
      run_end_[i] = a.length + a.runs[r];
      end_[i] = a.num_keys(r);
      first_key_ = i == 0 ? first_[i] : std::min(first_key_, first_[i]);
      last_run_ = std::max(last_run_, run_end_[i]);
      last_key_ = std::max(last_key_, end_[i]);
      if (++head == group) {
        head = 0;
        ++r;
      }
    }
  }

  // Packs the queries for the calls of reduce that follow.
  void prepare() const {
    const std::int64_t size = a_.keys.size;
    for (std::int64_t i = 0; i < num_; ++i) {
      const float* q = a_.q + head_[i] * a_.q_head_stride + row_[i] * a_.q_row_stride;
      float* packed = s_.queries + 2 * i;
      for (std::int64_t d = 0; d + 2 <= size; d += 2, packed += lanes_) {
        packed[0] = q[d] * a_.scale;
        packed[1] = q[d + 1] * a_.scale;
      }
      if (size % 2 != 0) {
        packed[0] = q[size - 1] * a_.scale;
        packed[1] = 0.0f;
      }
    }
    // Lanes without a query.
    for (std::int64_t d = 0; d < size; d += 2) {
      std::fill(s_.queries + d / 2 * lanes_ + 2 * num_, s_.queries + (d / 2 + 1) * lanes_, 0.0f);
    }
  }

  // The keys of one split.
  void reduce(std::int64_t split, const AttentionPartial& out) const {
    std::fill(out.maxima, out.maxima + lanes_, kLowestScore);
    std::fill(out.totals, out.totals + lanes_, 0.0f);
    std::fill(out.sums, out.sums + num_ * sum_stride_, 0.0f);
    const std::int64_t begin = split * kSplitKeys;
    const std::int64_t end = std::min(begin + kSplitKeys, last_key_);
    if (first_key_ >= begin + kSplitKeys) return;
    const std::int64_t first = std::max(begin, first_key_ / kChunkKeys * kChunkKeys);
    fetch(a_.keys, first);
    fetch(a_.values, first);
    score_tree(begin, end);
    for (std::int64_t c = first; c < end; c += kChunkKeys) {
      const std::int64_t count = std::min(kChunkKeys, end - c);
      score_run(c, count);
      score_ancestors(c, count);
      weigh(c, count, out);
      add_run(c, out);
      add_ancestors(c, count, out);
    }
  }

  // `into` += `from`, the split after those that `into` holds.
  void merge(const AttentionPartial& into, const AttentionPartial& from) const {
    for (std::int64_t v = 0; v < num_vecs_; ++v) {
      const std::int64_t at = v * kLanes;
      const vec maximum = max(load(into.maxima + at), load(from.maxima + at));
      const vec factor = exp(sub(load(into.maxima + at), maximum));
      const vec new_factor = exp(sub(load(from.maxima + at), maximum));
      store(into.maxima + at, maximum);
      store(s_.factors + at, factor);
      store(s_.new_factors + at, new_factor);
    }
    for (std::int64_t i = 0; i < num_; ++i) {
      const std::int64_t at = place(i);
      // A split in which a query sees nothing changes nothing, not even the sign of a zero.
      if (from.totals[at] == 0.0f) continue;
      float* sums = into.sums + i * sum_stride_;
      const float* more = from.sums + i * sum_stride_;
      if (into.totals[at] == 0.0f) {
        std::copy(more, more + sum_stride_, sums);
        continue;
      }
      const vec factor = broadcast(s_.factors[at]);
      const vec new_factor = broadcast(s_.new_factors[at]);
      for (std::int64_t d = 0; d < sum_stride_; d += kLanes) {
        store(sums + d, fma(load(more + d), new_factor, mul(load(sums + d), factor)));
      }
    }
    for (std::int64_t v = 0; v < num_vecs_; ++v) {
      const std::int64_t at = v * kLanes;
      const vec old = mul(load(into.totals + at), load(s_.factors + at));
      store(into.totals + at, fma(load(from.totals + at), load(s_.new_factors + at), old));
    }
  }

  // The quotients of a finished partial result.
  void write(const AttentionPartial& from) const {
    for (std::int64_t i = 0; i < num_; ++i) {
      float* out = a_.out + (row_[i] * a_.num_heads + head_[i]) * a_.values.size;
      const float* sums = from.sums + i * sum_stride_;
      const vec total = broadcast(end_[i] == 0 ? 1.0f : from.totals[place(i)]);
      for (std::int64_t d = 0; d < a_.values.size; d += kLanes) {
        const int count = static_cast<int>(std::min<std::int64_t>(kLanes, a_.values.size - d));
        store_first(out + d, div(load(sums + d), total), count);
      }
    }
  }

 private:
  const std::int64_t* ancestors(std::int64_t i) const {
    return a_.ancestors + a_.first_ancestor[row_[i]];
  }

  float* score(float* scores, std::int64_t key, std::int64_t i) const {
    return scores + key / 2 * lanes_ + key % 2 * 2 + place(i);
  }

  // Asks for the rows of a chunk that nothing asked for in advance.
  void fetch(const KvCache& cache, std::int64_t slot) const {
    const std::int64_t count = std::min(kChunkKeys, last_run_ - slot);
    const char* rows = cache.row(kv_head_, slot);
    for (std::int64_t b = 0; b < count * cache.row_bytes(); b += 64) {
      __builtin_prefetch(rows + b, 0, 2);
    }
  }

  // The rows of the next chunk.
  Lookahead ahead(const KvCache& cache, std::int64_t slot) const {
    if (slot + kChunkKeys >= last_run_) return {};
    return {cache.row(kv_head_, slot + kChunkKeys), cache.row_bytes()};
  }

  // Scores of the rows that are ancestors behind a run, keys begin..end-1 of some query.
  void score_tree(std::int64_t begin, std::int64_t end) const {
    std::int64_t first = a_.num_columns;
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < num_; ++i) {
      const std::int64_t from = std::max(begin, run_end_[i]);
      const std::int64_t to = std::min(end, end_[i]);
      if (from >= to) continue;
      first = std::min(first, ancestors(i)[from - run_end_[i]]);
      last = std::max(last, ancestors(i)[to - 1 - run_end_[i]] + 1);
    }
    for (std::int64_t j = first / 2 * 2; j < last; j += kChunkKeys) {
      const std::int64_t count = std::min(kChunkKeys, last - j);
      const float* keys = widen_rows(a_.keys, kv_head_, a_.length + j, count, s_.wide_keys);
      multiply_keys(s_.queries, lanes_, num_vecs_, keys, count, a_.keys.size,
                    s_.tree_scores + j / 2 * lanes_, {});
    }
  }

  void score_run(std::int64_t c, std::int64_t count) const {
    const std::int64_t begin = std::max<std::int64_t>(first_key_ - c, 0) / 2 * 2;
    const std::int64_t end = std::min(last_run_ - c, count);
    if (begin >= end) return;
    const float* keys = widen_rows(a_.keys, kv_head_, c + begin, end - begin, s_.wide_keys);
    multiply_keys(s_.queries, lanes_, num_vecs_, keys, end - begin, a_.keys.size,
                  s_.scores + begin / 2 * lanes_, ahead(a_.keys, c + begin));
  }

  void score_ancestors(std::int64_t c, std::int64_t count) const {
    if (a_.first_ancestor[a_.num_rows] == 0) return;
    for (std::int64_t i = 0; i < num_; ++i) {
      const std::int64_t end = std::min(c + count, end_[i]);
      for (std::int64_t k = std::max({c, run_end_[i], first_[i]}); k < end; ++k) {
        *score(s_.scores, k - c, i) = *score(s_.tree_scores, ancestors(i)[k - run_end_[i]], i);
      }
    }
  }

  void weigh(std::int64_t c, std::int64_t count, const AttentionPartial& out) const {
    const std::int64_t padded = (count + 3) / 4 * 4;
    if (a_.softcap != 0.0f) bend(padded / 2);
    for (std::int64_t i = 0; i < num_; ++i) {
      for (std::int64_t j = 0; j < std::min(first_[i] - c, padded); ++j) {
        *score(s_.scores, j, i) = kHidden;
      }
      for (std::int64_t j = std::max<std::int64_t>(end_[i] - c, 0); j < padded; ++j) {
        *score(s_.scores, j, i) = kHidden;
      }
    }
    for (std::int64_t v = 0; v < num_vecs_; ++v) {
      const std::int64_t at = v * kLanes;
      store(s_.factors + at, soften(s_.scores + at, lanes_, padded / 2, out.maxima + at,
                                    out.totals + at));
    }
    for (std::int64_t i = 0; i < num_; ++i) {
      const float factor = s_.factors[place(i)];
      if (factor == 1.0f) continue;
      float* sums = out.sums + i * sum_stride_;
      for (std::int64_t d = 0; d < sum_stride_; d += kLanes) {
        store(sums + d, mul(load(sums + d), broadcast(factor)));
      }
    }
  }

  void bend(std::int64_t num_pairs) const {
    const vec cap = broadcast(a_.softcap);
    for (std::int64_t j = 0; j < num_pairs; ++j) {
      for (std::int64_t v = 0; v < num_vecs_; ++v) {
        float* scores = s_.scores + j * lanes_ + v * kLanes;
        store(scores, mul(tanh(div(load(scores), cap)), cap));
      }
    }
  }

  // Keys of runs. Queries share a tile where they see the same keys: a weight of zero is not
  // nothing.
  void add_run(std::int64_t c, const AttentionPartial& out) const {
    const std::int64_t first = std::max(first_key_, c);
    const std::int64_t last = std::min(last_run_, c + kChunkKeys);
    if (first >= last) return;
    const float* values = widen_rows(a_.values, kv_head_, first, last - first, s_.wide_values);
    // Each tile of queries asks for its share.
    Lookahead wanted = ahead(a_.values, first);
    const std::int64_t num_tiles = (num_ + kValueQueries - 1) / kValueQueries;
    wanted.row_bytes = (wanted.row_bytes + num_tiles - 1) / num_tiles;
    const auto add = [&](std::int64_t i, std::int64_t together, std::int64_t from,
                         std::int64_t to) {
      if (from >= to) return;
      add_values_for(together)(s_.scores + place(i), lanes_, from - c, to - c,
                               values + (from - first) * a_.values.size, a_.values.size,
                               out.sums + i * sum_stride_, sum_stride_, wanted);
      wanted.rows += (to - from) * wanted.row_bytes;
    };
    for (std::int64_t i = 0; i < num_; i += kValueQueries) {
      const std::int64_t together = std::min<std::int64_t>(kValueQueries, num_ - i);
      // What all see is between what only some see.
      std::int64_t from = c;
      std::int64_t to = c + kChunkKeys;
      for (std::int64_t q = i; q < i + together; ++q) {
        from = std::max(from, first_[q]);
        to = std::min(to, run_end_[q]);
      }
      if (from >= to) from = to = c + kChunkKeys;
      for (std::int64_t q = i; q < i + together; ++q) {
        add(q, 1, std::max(first_[q], c), std::min(run_end_[q], from));
      }
      add(i, together, from, to);
      for (std::int64_t q = i; q < i + together; ++q) {
        add(q, 1, to, std::min(run_end_[q], c + kChunkKeys));
      }
    }
  }

  void add_ancestors(std::int64_t c, std::int64_t count, const AttentionPartial& out) const {
    for (std::int64_t i = 0; i < num_;) {
      // Queries of one row see the same keys; a tile begins at an even one.
      std::int64_t together = 1;
      while (i % 2 == 0 && together < kValueQueries && i + together < num_ && row_[i + together] == row_[i]) {
        ++together;
      }
      const std::int64_t end = std::min(c + count, end_[i]);
      for (std::int64_t k = std::max({c, run_end_[i], first_[i]}); k < end;) {
        const std::int64_t* rows = ancestors(i) + k - run_end_[i];
        std::int64_t run = 1;
        while (k + run < end && rows[run] == rows[0] + run) ++run;
        const float* values =
            widen_rows(a_.values, kv_head_, a_.length + rows[0], run, s_.wide_values);
        add_values_for(together)(s_.scores + place(i), lanes_, k - c, k - c + run, values,
                                 a_.values.size, out.sums + i * sum_stride_, sum_stride_, {});
        k += run;
      }
      i += together;
    }
  }

  static constexpr float kHidden = -std::numeric_limits<float>::infinity();

  const TreeAttention& a_;
  const AttentionScratch& s_;
  std::int64_t kv_head_;
  std::int64_t begin_;
  std::int64_t num_;
  std::int64_t num_vecs_;
  std::int64_t lanes_;
  std::int64_t sum_stride_;
  std::array<std::int64_t, kBlockQueries> row_;
  std::array<std::int64_t, kBlockQueries> head_;
  // Along the sequence of each query: the first key that it sees, the end of its run, its end.
  std::array<std::int64_t, kBlockQueries> first_;
  std::array<std::int64_t, kBlockQueries> run_end_;
  std::array<std::int64_t, kBlockQueries> end_;
  std::int64_t first_key_ = 0;
  std::int64_t last_run_ = 0;
  std::int64_t last_key_ = 0;
};

// What one thread does; the memory it is given is its own, but for the partial results.
class AttentionWorker {
 public:
  // `partials` holds partials_floats, `memory` AttentionScratch::num_floats.
  AttentionWorker(const TreeAttention& a, const AttentionPlan& plan, float* partials,
                  float* memory)
      : a_(a), plan_(plan), partials_(partials), scratch_(a, memory) {}

  // First phase, task 0..num_tasks-1.
  void run_task(std::int64_t task) {
    const std::int64_t first = plan_.first_split;
    if (plan_.by_split) {
      // Tasks of one block follow each other.
      block(task / plan_.num_splits).reduce(first + task % plan_.num_splits, partial(task));
      return;
    }
    const QueryBlock& all = block(task);
    all.reduce(first, scratch_.partial);
    for (std::int64_t split = 1; split < plan_.num_splits; ++split) {
      all.reduce(first + split, scratch_.next);
      all.merge(scratch_.partial, scratch_.next);
    }
    all.write(scratch_.partial);
  }

  // Second phase, after all tasks: merge 0..num_merges-1.
  void run_merge(std::int64_t index) {
    const QueryBlock all = make_block(index);
    const std::int64_t begin = index * plan_.num_splits;
    for (std::int64_t split = 1; split < plan_.num_splits; ++split) {
      all.merge(partial(begin), partial(begin + split));
    }
    all.write(partial(begin));
  }

 private:
  QueryBlock make_block(std::int64_t index) const {
    return QueryBlock(a_, scratch_, index / a_.num_blocks(), index % a_.num_blocks());
  }
  AttentionPartial partial(std::int64_t task) const {
    return AttentionPartial(a_, partials_ + task * AttentionPartial::num_floats(a_));
  }
  // The block, its queries packed.
  const QueryBlock& block(std::int64_t index) {
    if (!block_ || index != index_) {
      block_.emplace(make_block(index));
      block_->prepare();
      index_ = index;
    }
    return *block_;
  }

  const TreeAttention& a_;
  const AttentionPlan& plan_;
  float* partials_;
  AttentionScratch scratch_;
  std::optional<QueryBlock> block_;
  std::int64_t index_ = 0;
};

}  // namespace ygg
