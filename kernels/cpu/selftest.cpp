// Stand-alone check of the pointer kernels on odd shapes, for sanitizers and other machines: no
// torch. Usage: selftest [threads]. Compares with plain loops and, bit for bit, one row alone with
// the same row among others.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "attention.h"
#include "candidates.h"
#include "elementwise.h"
#include "embedding.h"
#include "kv.h"
#include "linear.h"
#include "noise.h"

namespace {

int num_threads = 1;
int num_failures = 0;
std::mt19937 generator(1);

void expect(bool ok, const char* what, std::int64_t a, std::int64_t b, std::int64_t c) {
  if (ok) return;
  ++num_failures;
  std::printf("FAILED %s (%lld, %lld, %lld)\n", what, static_cast<long long>(a),
              static_cast<long long>(b), static_cast<long long>(c));
}

std::vector<float> random_floats(std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

ygg::bf16 round_to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<ygg::bf16>(bits >> 16);
}

// Packed weights of any format; the vector is exactly as long as it must be.
std::vector<std::uint8_t> random_panels(std::int64_t format, std::int64_t size,
                                        std::int64_t num_k) {
  const std::int64_t num_panels = (size + ygg::kPanel - 1) / ygg::kPanel;
  const ygg::FormatInfo& info = ygg::format_info(format);
  if (info.group == 0) {
    const std::size_t width = format == ygg::kFloat32 ? sizeof(float) : sizeof(ygg::bf16);
    std::vector<std::uint8_t> bytes(num_panels * num_k * ygg::kPanel * width);
    for (std::int64_t n = 0; n < size; ++n) {
      const std::vector<float> row = random_floats(num_k);
      for (std::int64_t k = 0; k < num_k; ++k) {
        const bool wide = format == ygg::kFloat32;
        const std::int64_t column = n % ygg::kPanel;
        const std::int64_t at = n / ygg::kPanel * num_k * ygg::kPanel +
                                (wide ? ygg::place_in_panel<float>(k, column, num_k)
                                      : ygg::place_in_panel<ygg::bf16>(k, column, num_k));
        const ygg::bf16 half = round_to_bf16(row[k]);
        const void* value = wide ? static_cast<const void*>(&row[k]) : &half;
        std::memcpy(bytes.data() + at * width, value, width);
      }
    }
    return bytes;
  }
  std::vector<std::uint8_t> bytes(num_panels * (num_k / info.group) * info.bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(generator());
    // The first 64 bytes of a block hold its half floats: 0x2c.. is about 0.06.
    if (i % info.bytes < 64 && i % 2 == 1) bytes[i] = 0x2c;
  }
  return bytes;
}

std::vector<std::vector<float>> run_linear(const std::vector<float>& x, std::int64_t num_rows,
                                           std::int64_t num_k, std::int64_t format, bool integer,
                                           const std::vector<std::vector<std::uint8_t>>& panels,
                                           const std::vector<std::vector<float>>& biases,
                                           const std::vector<std::int64_t>& sizes) {
  std::vector<std::vector<float>> outputs;
  std::vector<ygg::LinearWeight> weights;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    outputs.emplace_back(num_rows * sizes[i], NAN);
    weights.push_back({panels[i].data(), biases[i].empty() ? nullptr : biases[i].data(),
                       outputs.back().data(), sizes[i], format});
  }
  const auto num_weights = static_cast<std::int64_t>(weights.size());
  const ygg::LinearPlan plan(weights.data(), num_weights, integer, num_rows, num_k);
  std::vector<char> memory(plan.num_bytes(num_threads));
#pragma omp parallel num_threads(num_threads)
  {
    const int part = omp_get_thread_num();
    const int parts = omp_get_num_threads();
    plan.prepare(x.data(), memory.data(), part, parts);
#pragma omp barrier
    ygg::linear_panels(plan.rows(x.data(), memory.data()), weights.data(), num_weights,
                       plan.scratch(memory.data(), part), part, parts);
  }
  return outputs;
}

void check_linear(std::int64_t format, bool integer, std::int64_t num_rows, std::int64_t num_k,
                  const std::vector<std::int64_t>& sizes) {
  const std::vector<float> x = random_floats(num_rows * num_k);
  std::vector<std::vector<std::uint8_t>> panels;
  std::vector<std::vector<float>> biases;
  for (std::int64_t size : sizes) {
    panels.push_back(random_panels(format, size, num_k));
    biases.push_back(size % 2 == 0 ? random_floats(size) : std::vector<float>{});
  }
  const auto outputs = run_linear(x, num_rows, num_k, format, integer, panels, biases, sizes);
  // Rounding a row to int8 moves each value by up to 1 / 254 of the largest of its group.
  const double tolerance = integer ? 2e-2 : 2e-6;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::int64_t n = 0; n < sizes[i]; ++n) {
      std::vector<float> row(num_k);
      ygg::gather_row_of(panels[i].data(), format, num_k, n, row.data());
      for (std::int64_t r = 0; r < num_rows; ++r) {
        double sum = biases[i].empty() ? 0.0 : biases[i][n];
        double size = 1.0;
        for (std::int64_t k = 0; k < num_k; ++k) {
          sum += static_cast<double>(x[r * num_k + k]) * row[k];
          size += std::fabs(static_cast<double>(x[r * num_k + k]) * row[k]);
        }
        expect(std::fabs(sum - outputs[i][r * sizes[i] + n]) <= tolerance * size,
               ygg::format_info(format).name, num_rows, num_k, n);
      }
    }
  }
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const std::vector<float> row(x.begin() + r * num_k, x.begin() + (r + 1) * num_k);
    const auto alone = run_linear(row, 1, num_k, format, integer, panels, biases, sizes);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      expect(std::memcmp(alone[i].data(), outputs[i].data() + r * sizes[i],
                         sizeof(float) * sizes[i]) == 0,
             "linear: one row alone", num_rows, num_k, r);
    }
  }
}

struct AttentionCase {
  std::int64_t num_heads, num_kv_heads, num_rows, length, key_size, value_size, window;
  float softcap;
  ygg::KvType type = ygg::KvType::kFloat32;
  bool chain = false;
};

// Rows [heads * slots][size] as a cache of `type` and what it holds then.
struct Stored {
  std::vector<char> bytes;
  std::vector<float> values;
  ygg::KvCache cache;

  Stored(const std::vector<float>& rows, std::int64_t num_heads, std::int64_t num_slots,
         std::int64_t size, ygg::KvType type)
      : cache{nullptr, type, num_slots, size} {
    bytes.resize(static_cast<std::size_t>(num_heads * num_slots * cache.row_bytes()));
    cache.data = bytes.data();
    std::vector<std::int64_t> slots;
    for (std::int64_t s = 0; s < num_slots; ++s) slots.push_back(s);
    ygg::write_rows(bytes.data(), cache, num_heads, rows.data(), num_slots * size, size,
                    slots.data(), num_slots);
    for (std::int64_t r = 0; r < num_heads * num_slots; ++r) {
      const char* row = bytes.data() + r * cache.row_bytes();
      float scale = 0.0f;
      if (type == ygg::KvType::kInt8) std::memcpy(&scale, row + size, sizeof(scale));
      for (std::int64_t d = 0; d < size; ++d) {
        float value = 0.0f;
        if (type == ygg::KvType::kFloat32) std::memcpy(&value, row + 4 * d, sizeof(value));
        if (type == ygg::KvType::kBfloat16) {
          std::memcpy(reinterpret_cast<char*>(&value) + 2, row + 2 * d, 2);
        }
        if (type == ygg::KvType::kInt8) value = scale * static_cast<signed char>(row[d]);
        values.push_back(value);
        const float error = std::fabs(value - rows[static_cast<std::size_t>(r * size + d)]);
        const float bound = type == ygg::KvType::kInt8 ? 0.5001f * scale : std::fabs(value) / 256;
        expect(error <= bound, "write_rows: rounding", r, d, size);
      }
    }
  }
};

std::vector<float> run_attention(const AttentionCase& c, const std::vector<float>& q,
                                 const ygg::KvCache& keys, const ygg::KvCache& values,
                                 const std::vector<std::vector<std::int64_t>>& paths) {
  // Not vector<bool>: the operator reads bytes.
  std::vector<unsigned char> mask(c.num_rows * c.num_rows, 0);
  std::vector<std::int64_t> positions;
  for (std::size_t r = 0; r < paths.size(); ++r) {
    for (std::int64_t j : paths[r]) mask[r * c.num_rows + j] = 1;
    positions.push_back(c.length + static_cast<std::int64_t>(paths[r].size()) - 1);
  }
  const bool* visible = reinterpret_cast<const bool*>(mask.data());
  std::vector<std::int64_t> runs(c.num_rows);
  std::vector<std::int64_t> first(c.num_rows + 1);
  std::vector<std::int64_t> ancestors(
      ygg::read_runs(visible, c.num_rows, c.num_rows, runs.data(), first.data()));
  ygg::read_ancestors(visible, c.num_rows, c.num_rows, runs.data(), ancestors.data());
  std::vector<float> out(c.num_rows * c.num_heads * c.value_size, NAN);
  const ygg::TreeAttention a{q.data(),     c.num_rows * c.key_size,
                             c.key_size,   keys,
                             values,       out.data(),
                             c.num_heads,  c.num_kv_heads,
                             c.num_rows,   c.num_rows,
                             c.length,     positions.data(),
                             runs.data(),  first.data(),
                             ancestors.data(), 0.2f,
                             c.window,     c.softcap};
  const ygg::AttentionPlan plan(a, num_threads);
  std::vector<float> partials(ygg::partials_floats(a, plan));
  const std::int64_t per_thread = ygg::AttentionScratch::num_floats(a);
  std::vector<float> memory(num_threads * per_thread);
#pragma omp parallel num_threads(num_threads)
  {
    ygg::AttentionWorker worker(a, plan, partials.data(),
                                memory.data() + omp_get_thread_num() * per_thread);
#pragma omp for schedule(dynamic, plan.share)
    for (std::int64_t task = 0; task < plan.num_tasks(); ++task) worker.run_task(task);
#pragma omp for
    for (std::int64_t block = 0; block < plan.num_merges(); ++block) worker.run_merge(block);
  }
  return out;
}

// A random tree or a chain against plain loops, and every row decoded alone over the same keys.
void check_attention(const AttentionCase& c) {
  const std::int64_t num_slots = c.length + c.num_rows;
  const std::vector<float> q = random_floats(c.num_heads * c.num_rows * c.key_size);
  const Stored keys(random_floats(c.num_kv_heads * num_slots * c.key_size), c.num_kv_heads,
                    num_slots, c.key_size, c.type);
  const Stored values(random_floats(c.num_kv_heads * num_slots * c.value_size), c.num_kv_heads,
                      num_slots, c.value_size, c.type);
  std::vector<std::vector<std::int64_t>> paths{{0}};
  for (std::int64_t r = 1; r < c.num_rows; ++r) {
    paths.push_back(c.chain ? paths.back() : paths[generator() % paths.size()]);
    paths.back().push_back(r);
  }
  const std::vector<float> out = run_attention(c, q, keys.cache, values.cache, paths);
  for (std::int64_t r = 0; r < c.num_rows; ++r) {
    std::vector<std::int64_t> slots;
    for (std::int64_t s = 0; s < c.length; ++s) slots.push_back(s);
    for (std::int64_t j : paths[r]) slots.push_back(c.length + j);
    const std::int64_t count = static_cast<std::int64_t>(slots.size());
    std::vector<char> own_keys;
    std::vector<char> own_values;
    std::vector<float> own_q;
    for (std::int64_t h = 0; h < c.num_kv_heads; ++h) {
      for (std::int64_t slot : slots) {
        const char* key = keys.cache.row(h, slot);
        const char* value = values.cache.row(h, slot);
        own_keys.insert(own_keys.end(), key, key + keys.cache.row_bytes());
        own_values.insert(own_values.end(), value, value + values.cache.row_bytes());
      }
    }
    for (std::int64_t h = 0; h < c.num_heads; ++h) {
      const float* row = q.data() + (h * c.num_rows + r) * c.key_size;
      own_q.insert(own_q.end(), row, row + c.key_size);
    }
    AttentionCase one = c;
    one.num_rows = 1;
    one.length = count - 1;
    const std::vector<float> alone =
        run_attention(one, own_q, {own_keys.data(), c.type, count, c.key_size},
                      {own_values.data(), c.type, count, c.value_size}, {{0}});
    expect(std::memcmp(alone.data(), out.data() + r * c.num_heads * c.value_size,
                       sizeof(float) * alone.size()) == 0,
           "attention: one row alone", c.num_rows, c.length, r);
    for (std::int64_t h = 0; h < c.num_heads; ++h) {
      const std::int64_t kv = h / (c.num_heads / c.num_kv_heads);
      std::vector<double> weights;
      double total = 0.0;
      const std::int64_t start =
          c.window == 0 ? 0 : std::max<std::int64_t>(0, count - c.window);
      for (std::int64_t i = start; i < count; ++i) {
        double score = 0.0;
        for (std::int64_t d = 0; d < c.key_size; ++d) {
          score += static_cast<double>(own_q[h * c.key_size + d]) *
                   keys.values[(kv * num_slots + slots[i]) * c.key_size + d];
        }
        score *= 0.2;
        if (c.softcap != 0.0f) score = c.softcap * std::tanh(score / c.softcap);
        weights.push_back(std::exp(score));
        total += weights.back();
      }
      for (std::int64_t d = 0; d < c.value_size; ++d) {
        double sum = 0.0;
        for (std::int64_t i = start; i < count; ++i) {
          sum += weights[i - start] / total *
                 values.values[(kv * num_slots + slots[i]) * c.value_size + d];
        }
        expect(std::fabs(sum - alone[h * c.value_size + d]) <= 2e-5, "attention", c.num_rows,
               c.length, d);
      }
    }
  }
}

void check_exp() {
  double worst = 0.0;
  for (float x = 0.0f; x > -87.0f; x -= 0.00037f) {
    const double exact = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(exact);
    const double ulp = std::nextafter(rounded, 2.0f) - static_cast<double>(rounded);
    worst = std::max(worst, std::fabs(ygg::exp(x) - exact) / ulp);
  }
  expect(worst <= 1.0, "exp: error in units of the last place, in thousandths",
         static_cast<std::int64_t>(worst * 1000), 0, 0);
  expect(ygg::exp(-INFINITY) == 0.0f && ygg::exp(0.0f) == 1.0f, "exp: ends", 0, 0, 0);
}

void check_moves() {
  const std::int64_t heads = 3, slots = 11, size = 5;
  const std::vector<float> cache = random_floats(heads * slots * size);
  const std::vector<std::int64_t> sources{4, 5, 7, 10}, targets{5, 6, 4, 7};
  std::vector<float> moved = cache;
  std::vector<char> buffer(sources.size() * size * sizeof(float));
  ygg::move_rows(reinterpret_cast<char*>(moved.data()), heads, slots, size * sizeof(float),
                 sources.data(), targets.data(), 4, buffer.data());
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t s = 0; s < slots; ++s) {
      std::int64_t from = s;
      for (int i = 0; i < 4; ++i) from = targets[i] == s ? sources[i] : from;
      expect(std::memcmp(&moved[(h * slots + s) * size], &cache[(h * slots + from) * size],
                         sizeof(float) * size) == 0,
             "move_rows", h, s, from);
    }
  }
  // Rows that no scale fits: zeros, an infinity, values whose inverse overflows.
  std::vector<char> codes(4 * 8);
  const ygg::KvCache one{codes.data(), ygg::KvType::kInt8, 4, 4};
  const std::vector<float> rows{0.0f, 0.0f, 0.0f, 0.0f, 1.0f, INFINITY, 1.0f, 1.0f,
                                1e-39f, 0.0f, -1e-39f, 0.0f, NAN, 1.0f, 1.0f, 1.0f};
  const std::vector<std::int64_t> places{0, 1, 2, 3};
  ygg::write_rows(codes.data(), one, 1, rows.data(), 16, 4, places.data(), 4);
  std::vector<float> wide(16);
  ygg::widen_rows(one, 0, 0, 4, wide.data());
  for (int i = 0; i < 16; ++i) {
    const bool lost = i / 4 % 2 == 1;
    expect(lost ? std::isnan(wide[i]) : wide[i] == 0.0f, "int8 rows without a scale", i, 0, 0);
  }
}

}  // namespace

void check_select(std::int64_t num) {
  const std::vector<float> scores = random_floats(num);
  std::vector<std::int64_t> ids(num);
  const std::int64_t all = ygg::select_loud(scores.data(), num, -INFINITY, 5, 10, ids.data());
  expect(all == num, "select_loud: everything", all, num, 0);
  const std::int64_t some = ygg::select_loud(scores.data(), num, 1.0f, 5, 31, ids.data());
  std::int64_t high = 0;
  for (std::int64_t i = 0; i < num; ++i) high += scores[i] >= 1.0f;
  expect(some == high, "select_loud: by score", some, high, num);
}

void check_top_shares(std::int64_t num, std::int64_t count) {
  const std::vector<float> scores = random_floats(num);
  std::vector<std::int64_t> places(count);
  std::vector<float> shares(count);
  ygg::top_shares(scores.data(), num, 0.7f, count, places.data(), shares.data());
  double total = 0.0;
  for (float score : scores) total += std::exp(score / 0.7);
  for (std::int64_t k = 0; k < count; ++k) {
    std::int64_t above = 0;
    for (std::int64_t i = 0; i < num; ++i) above += scores[i] > scores[places[k]];
    expect(above <= k, "top_shares: rank", above, k, num);
    const double wanted = std::exp(scores[places[k]] / 0.7) / total;
    expect(std::abs(shares[k] - wanted) <= 1e-5 * wanted, "top_shares: share", shares[k], wanted,
           num);
  }
}

void check_argmax(std::int64_t num) {
  std::vector<float> scores = random_floats(num);
  const auto largest = std::max_element(scores.begin(), scores.end()) - scores.begin();
  expect(ygg::argmax(scores.data(), num) == largest, "argmax", num, largest, 0);
  scores[num / 2] = NAN;
  expect(ygg::argmax(scores.data(), num) == num / 2, "argmax: NaN", num, num / 2, 0);
}

void check_silu_mul(std::int64_t num) {
  const std::vector<float> a = random_floats(num);
  const std::vector<float> b = random_floats(num);
  std::vector<float> out(num);
  ygg::silu_mul(a.data(), b.data(), 0, num, out.data());
  for (std::int64_t i = 0; i < num; ++i) {
    const double wanted = a[i] / (1.0 + std::exp(-static_cast<double>(a[i]))) * b[i];
    expect(std::abs(out[i] - wanted) <= 1e-6 * std::abs(wanted), "silu_mul", num, i, 0);
  }
}

int main(int argc, char** argv) {
  num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
#if defined(YGG_AMX)
  if (!ygg::allow_tiles()) {
    std::printf("FAILED: this kernel gives no AMX registers\n");
    return 1;
  }
#endif
  check_exp();
  check_moves();
  for (std::int64_t num : {0, 1, 255, 256, 257, 1000}) check_select(num);
  for (std::int64_t num : {1, 15, 64, 257, 1000}) {
    check_top_shares(num, 1);
    check_top_shares(num, std::min<std::int64_t>(num, 33));
  }
  for (std::int64_t num : {1, 7, 64, 65, 1000}) {
    check_argmax(num);
    check_silu_mul(num);
  }
  for (std::int64_t rows : {1, 2, 3, 5, 7, 13, 25, 49, 65}) {
    for (std::int64_t k : {1, 40, 255, 256, 257, 512, 576, 1100}) {
      check_linear(ygg::kFloat32, false, rows, k, {33, 16, 1});
      check_linear(ygg::kBfloat16, false, rows, k, {20, 47});
    }
    for (std::int64_t format = ygg::kQ4_0; format < ygg::kNumFormats; ++format) {
      for (bool integer : {false, true}) check_linear(format, integer, rows, 512, {33, 16, 1});
      if (ygg::format_info(format).group != 32) continue;
      // Of groups an odd number, and of steps of two groups.
      for (std::int64_t k : {192, 224, 320}) check_linear(format, true, rows, k, {20, 47});
    }
  }
  const AttentionCase cases[] = {
      {9, 3, 1, 0, 64, 64, 0, 0.0f},     {9, 3, 16, 100, 64, 64, 0, 0.0f},
      {4, 4, 65, 3, 32, 40, 0, 0.0f},    {8, 2, 7, 300, 80, 72, 50, 0.0f},
      {6, 1, 33, 62, 256, 128, 0, 5.0f}, {2, 1, 21, 130, 13, 7, 1, 3.0f},
      {8, 1, 20, 0, 96, 256, 9, 0.0f},   {1, 1, 64, 64, 8, 8, 64, 0.0f},
      {9, 3, 8, 509, 64, 64, 0, 0.0f},   {3, 1, 21, 250, 16, 20, 0, 0.0f},
      {2, 1, 5, 700, 8, 24, 300, 0.0f},  {14, 2, 50, 251, 32, 32, 0, 0.0f},
      {9, 3, 70, 490, 16, 16, 0, 0.0f, ygg::KvType::kFloat32, true},
      {9, 3, 40, 240, 16, 16, 33, 0.0f, ygg::KvType::kFloat32, true},
      {9, 3, 9, 254, 64, 64, 0, 0.0f, ygg::KvType::kBfloat16},
      {4, 2, 33, 600, 13, 7, 0, 0.0f, ygg::KvType::kBfloat16},
      {4, 2, 20, 255, 16, 8, 9, 0.0f, ygg::KvType::kBfloat16, true},
      {9, 3, 9, 254, 64, 64, 0, 0.0f, ygg::KvType::kInt8},
      {4, 2, 33, 600, 12, 20, 0, 4.0f, ygg::KvType::kInt8},
      {4, 2, 20, 255, 16, 8, 9, 0.0f, ygg::KvType::kInt8, true},
  };
  for (const AttentionCase& c : cases) check_attention(c);
  std::printf("%d failures with %d threads, %d lanes\n", num_failures, num_threads, ygg::kLanes);
  return num_failures == 0 ? 0 : 1;
}
