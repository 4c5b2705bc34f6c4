// Binding of the pointer kernels to torch, under the namespace that -DYGG_NAMESPACE gives. Checks
// what a graph could get wrong (dtype, shape, stride, index range) and owns memory and threads.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>
#include <omp.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/library.h>

#include <array>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <tuple>
#include <vector>

#include "attention.h"
#include "candidates.h"
#include "elementwise.h"
#include "embedding.h"
#include "kv.h"
#include "linear.h"
#include "memory.h"
#include "noise.h"

namespace {

using at::Tensor;

void check_float(const Tensor& t, const char* name) {
  TORCH_CHECK(t.scalar_type() == at::kFloat && t.device().is_cpu(), name,
              ": expected a float32 CPU tensor, got ", t.scalar_type(), " on ", t.device());
}

void check_dense(const Tensor& t, const char* name, int64_t dims) {
  TORCH_CHECK(t.dim() == dims && t.is_contiguous(), name, ": expected a contiguous tensor of ",
              dims, " dimensions, got sizes ", t.sizes(), " strides ", t.strides());
}

void check_index(const Tensor& t, const char* name) {
  TORCH_CHECK(t.scalar_type() == at::kLong && t.device().is_cpu() && t.dim() == 1 &&
                  t.is_contiguous(),
              name, ": expected a contiguous int64 CPU vector, got ", t.scalar_type(), " sizes ",
              t.sizes());
}

void check_range(const Tensor& t, const char* name, int64_t limit) {
  const int64_t* data = t.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < t.numel(); ++i) {
    TORCH_CHECK(data[i] >= 0 && data[i] < limit, name, "[", i, "] is ", data[i],
                ", expected 0 <= value < ", limit);
  }
}

// A matrix [num_outputs] x K in the panels of a format.
void check_panels(const Tensor& t, const char* name, int64_t num_outputs, int64_t num_k,
                  int64_t format) {
  TORCH_CHECK(format >= 0 && format < ygg::kNumFormats, name, ": format ", format,
              " is unknown, expected 0..", ygg::kNumFormats - 1);
  const ygg::FormatInfo& info = ygg::format_info(format);
  const at::ScalarType dtype = format == ygg::kFloat32    ? at::kFloat
                               : format == ygg::kBfloat16 ? at::kBFloat16
                                                          : at::kByte;
  TORCH_CHECK(t.scalar_type() == dtype && t.device().is_cpu(), name, ": format ", info.name,
              " expects ", dtype, " on the CPU, got ", t.scalar_type(), " on ", t.device());
  const int64_t panels = (num_outputs + ygg::kPanel - 1) / ygg::kPanel;
  TORCH_CHECK(info.group == 0 || num_k % info.group == 0, name, ": format ", info.name,
              " expects a K that is a multiple of ", info.group, ", got ", num_k);
  const std::array<int64_t, 3> wanted{panels, info.group == 0 ? num_k : num_k / info.group,
                                      info.group == 0 ? int64_t{ygg::kPanel} : info.bytes};
  TORCH_CHECK(t.sizes() == at::IntArrayRef(wanted) && t.is_contiguous(), name,
              ": expected contiguous ", info.name, " panels ", at::IntArrayRef(wanted),
              ", got sizes ", t.sizes(), " strides ", t.strides());
}

// Memory for one call at a time, kept from call to call: after the first passes none is allocated.
// It begins on a page.
class Workspace {
 public:
  // `num_bytes` of memory, valid until the next call of this thread.
  template <class T>
  T* take(int64_t count) {
    const auto num_bytes = static_cast<size_t>(count) * sizeof(T);
    if (num_bytes > num_bytes_) {
      memory_.reset();
      num_bytes_ = static_cast<size_t>(ygg::whole_pages(static_cast<int64_t>(num_bytes)));
      memory_.reset(std::aligned_alloc(ygg::kPageBytes, num_bytes_));
      if (memory_ == nullptr) {
        num_bytes_ = 0;
        throw std::bad_alloc();
      }
    }
    return static_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t num_bytes_ = 0;
};

Workspace& workspace() {
  static thread_local Workspace of_thread;
  return of_thread;
}

// As many products take one thread a few microseconds, as long as threads take to start and wait.
constexpr int64_t kAloneProducts = 1 << 16;

// `biases` holds one bias per weight, or nothing.
std::vector<Tensor> multiply(const Tensor& x, at::TensorList weights, at::TensorList biases,
                             at::IntArrayRef sizes, at::IntArrayRef formats, bool integer) {
#if defined(YGG_AMX)
  static const bool allowed = ygg::allow_tiles();
  TORCH_CHECK(allowed, "linear: this kernel gives the process no AMX registers, which the "
              "operators were built for; build again here");
#endif
  check_float(x, "linear: x");
  TORCH_CHECK(x.dim() >= 1 && x.is_contiguous(), "linear: x: expected contiguous, got sizes ",
              x.sizes(), " strides ", x.strides());
  TORCH_CHECK(weights.size() == sizes.size() && weights.size() == formats.size(),
              "linear: got ", weights.size(), " weights, ", sizes.size(), " sizes and ",
              formats.size(), " formats");
  const int64_t num_k = x.size(-1);
  TORCH_CHECK(num_k > 0, "linear: x has no columns");
  const int64_t num_rows = x.numel() / num_k;

  std::vector<Tensor> outputs;
  c10::SmallVector<ygg::LinearWeight, 8> items;
  outputs.reserve(weights.size());
  int64_t num_products = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    TORCH_CHECK(sizes[i] > 0, "linear: sizes[", i, "] is ", sizes[i], ", expected > 0");
    check_panels(weights[i], "linear: weight", sizes[i], num_k, formats[i]);
    const float* bias = nullptr;
    if (!biases.empty()) {
      check_float(biases[i], "linear: bias");
      check_dense(biases[i], "linear: bias", 1);
      TORCH_CHECK(biases[i].size(0) == sizes[i], "linear: bias has ", biases[i].size(0),
                  " values, expected ", sizes[i]);
      bias = biases[i].const_data_ptr<float>();
    }
    at::DimVector shape(x.sizes());
    shape.back() = sizes[i];
    outputs.push_back(at::empty(shape, x.options()));
    items.push_back({weights[i].const_data_ptr(), bias, outputs.back().mutable_data_ptr<float>(),
                     sizes[i], formats[i]});
    num_products += sizes[i] * num_k;
  }

  const int num_threads = at::get_num_threads();
  const float* rows = x.const_data_ptr<float>();
  const auto num_items = static_cast<int64_t>(items.size());
  const ygg::LinearPlan plan(items.data(), num_items, integer, num_rows, num_k);
  char* memory = workspace().take<char>(plan.num_bytes(num_threads));
#pragma omp parallel num_threads(num_threads) if (num_products * num_rows > kAloneProducts)
  {
    // The runtime may grant fewer threads than asked for.
    const int part = omp_get_thread_num();
    const int num_parts = omp_get_num_threads();
    plan.prepare(rows, memory, part, num_parts);
    if (plan.prepares()) {
#pragma omp barrier
    }
    ygg::linear_panels(plan.rows(rows, memory), items.data(), num_items,
                       plan.scratch(memory, part), part, num_parts);
  }
  return outputs;
}

std::vector<Tensor> linear(const Tensor& x, at::TensorList weights, at::TensorList biases,
                           at::IntArrayRef sizes, at::IntArrayRef formats, bool integer) {
  TORCH_CHECK(biases.size() == weights.size(), "linear: got ", biases.size(), " biases for ",
              weights.size(), " weights");
  return multiply(x, weights, biases, sizes, formats, integer);
}

std::vector<Tensor> linear_unbiased(const Tensor& x, at::TensorList weights,
                                    at::IntArrayRef sizes, at::IntArrayRef formats,
                                    bool integer) {
  return multiply(x, weights, {}, sizes, formats, integer);
}

Tensor embedding(const Tensor& ids, const Tensor& weight, int64_t size, int64_t format) {
  TORCH_CHECK(ids.scalar_type() == at::kLong && ids.device().is_cpu() && ids.is_contiguous(),
              "embedding: ids: expected contiguous int64 on the CPU, got ", ids.scalar_type(),
              " sizes ", ids.sizes(), " strides ", ids.strides());
  TORCH_CHECK(weight.dim() == 3, "embedding: weight: expected panels of 3 dimensions, got sizes ",
              weight.sizes());
  const bool known = format >= 0 && format < ygg::kNumFormats;
  const int group = known ? ygg::format_info(format).group : 0;
  const int64_t num_k = weight.size(1) * std::max(1, group);
  check_panels(weight, "embedding: weight", size, num_k, format);
  check_range(ids, "embedding: ids", size);
  at::DimVector shape(ids.sizes());
  shape.push_back(num_k);
  Tensor output = at::empty(shape, weight.options().dtype(at::kFloat));
  float* out = output.mutable_data_ptr<float>();
  const int64_t* rows = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    ygg::gather_row_of(weight.const_data_ptr(), format, num_k, rows[i], out + i * num_k);
  }
  return output;
}

// A cache [1, heads, slots, D] of float32 or bfloat16, or of uint8 with D + 4 bytes a row.
ygg::KvCache check_cache(const Tensor& t, const char* name) {
  TORCH_CHECK(t.device().is_cpu() &&
                  (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16 ||
                   t.scalar_type() == at::kByte),
              name, ": expected float32, bfloat16 or uint8 (int8 rows) on the CPU, got ",
              t.scalar_type(), " on ", t.device());
  check_dense(t, name, 4);
  TORCH_CHECK(t.size(0) == 1, name, ": expected [1, heads, slots, size], got ", t.sizes());
  const char* data = static_cast<const char*>(t.const_data_ptr());
  if (t.scalar_type() == at::kFloat) {
    return {data, ygg::KvType::kFloat32, t.size(2), t.size(3)};
  }
  if (t.scalar_type() == at::kBFloat16) {
    return {data, ygg::KvType::kBfloat16, t.size(2), t.size(3)};
  }
  TORCH_CHECK(t.size(3) > 4 && t.size(3) % 4 == 0, name,
              ": expected uint8 rows of D codes and 4 bytes of scale, D a multiple of 4, got ",
              t.size(3), " bytes");
  return {data, ygg::KvType::kInt8, t.size(2), t.size(3) - 4};
}

Tensor tree_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                      const Tensor& length, const Tensor& positions, const Tensor& tree_mask,
                      double scale, int64_t window, double softcap) {
  check_float(q, "tree_attention: q");
  const ygg::KvCache keys = check_cache(k_cache, "tree_attention: k_cache");
  const ygg::KvCache values = check_cache(v_cache, "tree_attention: v_cache");
  TORCH_CHECK(k_cache.scalar_type() == v_cache.scalar_type(), "tree_attention: k_cache is ",
              k_cache.scalar_type(), ", v_cache is ", v_cache.scalar_type(), ": expected the same");
  TORCH_CHECK(q.dim() == 4 && q.size(0) == 1 && (q.stride(3) == 1 || q.size(3) == 1),
              "tree_attention: q: expected [1, heads, rows, size] with a dense last dimension, "
              "got sizes ",
              q.sizes(), " strides ", q.strides());
  TORCH_CHECK(keys.size == q.size(3) && k_cache.size(1) == v_cache.size(1) &&
                  k_cache.size(2) == v_cache.size(2),
              "tree_attention: caches do not fit q: q ", q.sizes(), ", k_cache ", k_cache.sizes(),
              ", v_cache ", v_cache.sizes(), " of ", k_cache.scalar_type());
  const int64_t num_heads = q.size(1);
  const int64_t num_rows = q.size(2);
  const int64_t num_kv_heads = k_cache.size(1);
  TORCH_CHECK(num_kv_heads > 0 && num_heads % num_kv_heads == 0, "tree_attention: ", num_heads,
              " query heads, ", num_kv_heads, " key heads: expected a multiple");
  check_index(length, "tree_attention: length");
  check_index(positions, "tree_attention: positions");
  TORCH_CHECK(length.numel() == 1 && positions.numel() == num_rows,
              "tree_attention: expected length [1] and positions [", num_rows, "], got ",
              length.sizes(), " and ", positions.sizes());
  TORCH_CHECK(tree_mask.scalar_type() == at::kBool && tree_mask.device().is_cpu(),
              "tree_attention: tree_mask: expected bool on the CPU, got ",
              tree_mask.scalar_type());
  check_dense(tree_mask, "tree_attention: tree_mask", 2);
  const int64_t num_columns = tree_mask.size(1);
  TORCH_CHECK(tree_mask.size(0) == num_rows && num_columns >= num_rows,
              "tree_attention: tree_mask: expected [", num_rows, ", at least ", num_rows,
              "], got ", tree_mask.sizes());
  TORCH_CHECK(window >= 0, "tree_attention: window is ", window, ", expected >= 0");
  TORCH_CHECK(softcap >= 0.0, "tree_attention: softcap is ", softcap, ", expected >= 0");
  const int64_t prefix = *length.const_data_ptr<int64_t>();
  TORCH_CHECK(prefix >= 0 && prefix <= k_cache.size(2) - num_columns, "tree_attention: length ",
              prefix, " and ", num_columns, " rows do not fit ", k_cache.size(2), " slots");

  Tensor output = at::empty({1, num_rows, num_heads, values.size}, q.options());
  if (output.numel() == 0) return output;
  const bool* mask = tree_mask.const_data_ptr<bool>();
  c10::SmallVector<int64_t, 256> indices(2 * num_rows + 1);
  const int64_t num_others =
      ygg::read_runs(mask, num_rows, num_columns, indices.data(), indices.data() + num_rows);
  indices.resize(indices.size() + num_others);
  const int64_t* runs = indices.data();
  const int64_t* first_ancestor = runs + num_rows;
  int64_t* others = indices.data() + 2 * num_rows + 1;
  ygg::read_ancestors(mask, num_rows, num_columns, runs, others);

  const ygg::TreeAttention a{q.const_data_ptr<float>(),
                             q.stride(1),
                             q.stride(2),
                             keys,
                             values,
                             output.mutable_data_ptr<float>(),
                             num_heads,
                             num_kv_heads,
                             num_rows,
                             num_columns,
                             prefix,
                             positions.const_data_ptr<int64_t>(),
                             runs,
                             first_ancestor,
                             others,
                             static_cast<float>(scale),
                             window,
                             static_cast<float>(softcap)};
  const int num_threads = at::get_num_threads();
  const ygg::AttentionPlan plan(a, num_threads);
  const int64_t per_thread = ygg::floats_apart(ygg::AttentionScratch::num_floats(a));
  const int64_t partials_floats = ygg::floats_apart(ygg::partials_floats(a, plan));
  float* partials = workspace().take<float>(partials_floats + num_threads * per_thread);
  const int64_t num_products = num_heads * num_rows * (prefix + num_rows) * (keys.size + values.size);
#pragma omp parallel num_threads(num_threads) if (num_products > kAloneProducts)
  {
    ygg::AttentionWorker worker(a, plan, partials,
                                partials + partials_floats + omp_get_thread_num() * per_thread);
#pragma omp for schedule(dynamic, plan.share) nowait
    for (int64_t task = 0; task < plan.num_tasks(); ++task) worker.run_task(task);
    if (plan.num_merges() > 0) {
#pragma omp barrier
#pragma omp for schedule(static) nowait
      for (int64_t block = 0; block < plan.num_merges(); ++block) worker.run_merge(block);
    }
  }
  return output;
}

void kv_write(const Tensor& cache, const Tensor& rows, const Tensor& slots) {
  const ygg::KvCache target = check_cache(cache, "kv_write: cache");
  check_float(rows, "kv_write: rows");
  check_index(slots, "kv_write: slots");
  TORCH_CHECK(rows.dim() == 4 && rows.size(0) == 1 && rows.size(1) == cache.size(1) &&
                  rows.size(2) == slots.numel() && rows.size(3) == target.size &&
                  (rows.stride(3) == 1 || rows.size(3) == 1),
              "kv_write: rows ", rows.sizes(), " strides ", rows.strides(), " do not fit cache ",
              cache.sizes(), " of ", cache.scalar_type(), " and ", slots.numel(), " slots");
  check_range(slots, "kv_write: slots", cache.size(2));
  ygg::write_rows(static_cast<char*>(cache.mutable_data_ptr()), target, cache.size(1),
                  rows.const_data_ptr<float>(), rows.stride(1), rows.stride(2),
                  slots.const_data_ptr<int64_t>(), slots.numel());
}

void kv_commit(at::TensorList caches, const Tensor& sources, const Tensor& targets) {
  check_index(sources, "kv_commit: sources");
  check_index(targets, "kv_commit: targets");
  TORCH_CHECK(sources.numel() == targets.numel(), "kv_commit: got ", sources.numel(),
              " sources and ", targets.numel(), " targets");
  int64_t largest = 0;
  for (const Tensor& cache : caches) {
    largest = std::max(largest, check_cache(cache, "kv_commit: cache").row_bytes());
    check_range(sources, "kv_commit: sources", cache.size(2));
    check_range(targets, "kv_commit: targets", cache.size(2));
  }
  char* buffer = workspace().take<char>(sources.numel() * largest);
  for (const Tensor& cache : caches) {
    ygg::move_rows(static_cast<char*>(cache.mutable_data_ptr()), cache.size(1), cache.size(2),
                   cache.size(3) * cache.element_size(), sources.const_data_ptr<int64_t>(),
                   targets.const_data_ptr<int64_t>(), sources.numel(), buffer);
  }
}

Tensor keyed_select(const Tensor& scores, double bound, int64_t key, int64_t num_bits) {
  check_float(scores, "keyed_select: scores");
  check_dense(scores, "keyed_select: scores", 1);
  TORCH_CHECK(num_bits >= 1 && num_bits <= 31, "keyed_select: num_bits is ", num_bits,
              ", expected 1..31");
  const int64_t num = scores.numel();
  auto* ids = workspace().take<int64_t>(num);
  const int64_t count =
      ygg::select_loud(scores.const_data_ptr<float>(), num, static_cast<float>(bound),
                       static_cast<uint64_t>(key), static_cast<int>(num_bits), ids);
  Tensor output = at::empty({count}, scores.options().dtype(at::kLong));
  std::copy_n(ids, count, output.mutable_data_ptr<int64_t>());
  return output;
}

std::tuple<Tensor, Tensor> top_shares(const Tensor& logits, const Tensor& temperatures,
                                      int64_t count) {
  check_float(logits, "top_shares: logits");
  check_float(temperatures, "top_shares: temperatures");
  check_dense(logits, "top_shares: logits", 2);
  check_dense(temperatures, "top_shares: temperatures", 1);
  const int64_t num_rows = logits.size(0);
  const int64_t num = logits.size(1);
  TORCH_CHECK(temperatures.numel() == num_rows, "top_shares: temperatures: expected [", num_rows,
              "], got ", temperatures.sizes());
  TORCH_CHECK(count >= 1 && count <= num, "top_shares: count is ", count, ", expected 1..", num);
  Tensor places = at::empty({num_rows, count}, logits.options().dtype(at::kLong));
  Tensor shares = at::empty({num_rows, count}, logits.options());
  for (int64_t r = 0; r < num_rows; ++r) {
    const float temperature = temperatures.const_data_ptr<float>()[r];
    TORCH_CHECK(temperature > 0.0f, "top_shares: a temperature is ", temperature,
                ", expected above 0");
    ygg::top_shares(logits.const_data_ptr<float>() + r * num, num, temperature, count,
                    places.mutable_data_ptr<int64_t>() + r * count,
                    shares.mutable_data_ptr<float>() + r * count);
  }
  return {places, shares};
}

// As many values as take one thread a few microseconds.
constexpr int64_t kAloneValues = 8192;

Tensor argmax(const Tensor& logits) {
  check_float(logits, "argmax: logits");
  check_dense(logits, "argmax: logits", 2);
  TORCH_CHECK(logits.size(1) > 0, "argmax: logits have no columns");
  const int64_t num_rows = logits.size(0);
  const int64_t num = logits.size(1);
  Tensor places = at::empty({num_rows}, logits.options().dtype(at::kLong));
  const float* rows = logits.const_data_ptr<float>();
  auto* out = places.mutable_data_ptr<int64_t>();
#pragma omp parallel for num_threads(at::get_num_threads()) if (num_rows > 1)
  for (int64_t r = 0; r < num_rows; ++r) out[r] = ygg::argmax(rows + r * num, num);
  return places;
}

bool expands_to(const Tensor& t, at::IntArrayRef sizes) {
  const auto more = static_cast<int64_t>(sizes.size()) - t.dim();
  bool fits = more >= 0;
  for (int64_t i = 0; fits && i < t.dim(); ++i) {
    fits = t.size(i) == 1 || t.size(i) == sizes[static_cast<size_t>(i + more)];
  }
  return fits;
}

Tensor silu_mul(const Tensor& a, const Tensor& b) {
  check_float(a, "silu_mul: a");
  check_float(b, "silu_mul: b");
  TORCH_CHECK(expands_to(b, a.sizes()), "silu_mul: expected b of the sizes of a or fewer, got ",
              a.sizes(), " and ", b.sizes());
  const Tensor dense_a = a.contiguous();
  const Tensor dense_b = b.expand(a.sizes()).contiguous();
  Tensor output = at::empty(a.sizes(), a.options());
  const int64_t num = a.numel();
  const float* x = dense_a.const_data_ptr<float>();
  const float* y = dense_b.const_data_ptr<float>();
  auto* out = output.mutable_data_ptr<float>();
#pragma omp parallel num_threads(at::get_num_threads()) if (num > kAloneValues)
  {
    // Parts that end where a vector does.
    const int64_t part = omp_get_thread_num();
    const int64_t num_parts = omp_get_num_threads();
    const int64_t vectors = num / ygg::kLanes;
    ygg::silu_mul(x, y, vectors * part / num_parts * ygg::kLanes,
                  part + 1 == num_parts ? num : vectors * (part + 1) / num_parts * ygg::kLanes,
                  out);
  }
  return output;
}

Tensor materialize(const Tensor& x) { return x.clone(); }

using torch::aot_inductor::new_tensor_handle;
using torch::aot_inductor::tensor_handle_to_tensor_pointer;

const Tensor& tensor(AtenTensorHandle handle) { return *tensor_handle_to_tensor_pointer(handle); }

// The tensors behind `count` handles; no reference is counted.
class Tensors {
 public:
  Tensors(const AtenTensorHandle* handles, int64_t count) {
    for (int64_t i = 0; i < count; ++i) list_.push_back(tensor(handles[i]));
  }
  operator at::TensorList() const { return list_; }

 private:
  c10::SmallVector<Tensor, 4> list_;
};

// Where a call wants its results: one pointer each, behind its named arguments.
class Places {
 public:
  Places(int64_t count, va_list arguments) {
    for (int64_t i = 0; i < count; ++i) list_.push_back(va_arg(arguments, AtenTensorHandle*));
  }
  void fill(std::vector<Tensor>&& outputs) const {
    for (size_t i = 0; i < list_.size(); ++i) *list_[i] = new_tensor_handle(std::move(outputs[i]));
  }

 private:
  c10::SmallVector<AtenTensorHandle*, 4> list_;
};

}  // namespace

// What compiled graphs call: C functions, named by the namespace and the operator, in the manner
// of AOTInductor's C shims (declared in ygg_kernels.ops). A call through torch's dispatcher boxes
// every argument, which costs as much as a small product.
#define YGG_PASTE(ns, name) ns##_##name
#define YGG_EXPORT(ns, name) \
  extern "C" __attribute__((visibility("default"))) AOTITorchError YGG_PASTE(ns, name)

YGG_EXPORT(YGG_NAMESPACE, linear)(AtenTensorHandle x, const AtenTensorHandle* weights,
                                  int64_t num_weights, const AtenTensorHandle* biases,
                                  int64_t num_biases, const int64_t* sizes, int64_t num_sizes,
                                  const int64_t* formats, int64_t num_formats, int32_t integer,
                                  ...) {
  va_list arguments;
  va_start(arguments, integer);
  const Places places(num_weights, arguments);
  va_end(arguments);
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      places.fill(linear(tensor(x), Tensors(weights, num_weights), Tensors(biases, num_biases),
                         at::IntArrayRef(sizes, static_cast<size_t>(num_sizes)),
                         at::IntArrayRef(formats, static_cast<size_t>(num_formats)),
                         integer != 0)););
}

YGG_EXPORT(YGG_NAMESPACE, linear_unbiased)(AtenTensorHandle x, const AtenTensorHandle* weights,
                                           int64_t num_weights, const int64_t* sizes,
                                           int64_t num_sizes, const int64_t* formats,
                                           int64_t num_formats, int32_t integer, ...) {
  va_list arguments;
  va_start(arguments, integer);
  const Places places(num_weights, arguments);
  va_end(arguments);
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(places.fill(
      linear_unbiased(tensor(x), Tensors(weights, num_weights),
                      at::IntArrayRef(sizes, static_cast<size_t>(num_sizes)),
                      at::IntArrayRef(formats, static_cast<size_t>(num_formats)), integer != 0)););
}

YGG_EXPORT(YGG_NAMESPACE, tree_attention)(AtenTensorHandle q, AtenTensorHandle k_cache,
                                          AtenTensorHandle v_cache, AtenTensorHandle length,
                                          AtenTensorHandle positions, AtenTensorHandle tree_mask,
                                          double scale, int64_t window, double softcap,
                                          AtenTensorHandle* output) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(*output = new_tensor_handle(tree_attention(
                                                 tensor(q), tensor(k_cache), tensor(v_cache),
                                                 tensor(length), tensor(positions),
                                                 tensor(tree_mask), scale, window, softcap)););
}

YGG_EXPORT(YGG_NAMESPACE, argmax)(AtenTensorHandle logits, AtenTensorHandle* output) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(*output =
                                                 new_tensor_handle(argmax(tensor(logits))););
}

YGG_EXPORT(YGG_NAMESPACE, silu_mul)(AtenTensorHandle a, AtenTensorHandle b,
                                    AtenTensorHandle* output) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      *output = new_tensor_handle(silu_mul(tensor(a), tensor(b))););
}

YGG_EXPORT(YGG_NAMESPACE, materialize)(AtenTensorHandle x, AtenTensorHandle* output) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(*output =
                                                 new_tensor_handle(materialize(tensor(x))););
}

// TORCH_LIBRARY pastes its first argument, so the namespace has to be expanded before.
#define YGG_LIBRARY(name, m) TORCH_LIBRARY(name, m)
#define YGG_LIBRARY_IMPL(name, key, m) TORCH_LIBRARY_IMPL(name, key, m)

YGG_LIBRARY(YGG_NAMESPACE, m) {
  m.def(
      "linear(Tensor x, Tensor[] weights, Tensor[] biases, int[] sizes, int[] formats, "
      "bool integer) -> Tensor[]");
  // Not an overload: what a graph calls directly is found by the operator's name alone.
  m.def(
      "linear_unbiased(Tensor x, Tensor[] weights, int[] sizes, int[] formats, bool integer) -> "
      "Tensor[]");
  m.def("embedding(Tensor ids, Tensor weight, int size, int format) -> Tensor");
  m.def(
      "tree_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor length, Tensor positions, "
      "Tensor tree_mask, float scale, int window, float softcap) -> Tensor");
  m.def("kv_write(Tensor(a!) cache, Tensor rows, Tensor slots) -> ()");
  m.def("kv_commit(Tensor(a!)[] caches, Tensor sources, Tensor targets) -> ()");
  m.def("keyed_select(Tensor scores, float bound, int key, int num_bits) -> Tensor");
  m.def("argmax(Tensor logits) -> Tensor");
  m.def("silu_mul(Tensor a, Tensor b) -> Tensor");
  m.def("materialize(Tensor x) -> Tensor");
  m.def("top_shares(Tensor logits, Tensor temperatures, int count) -> (Tensor, Tensor)");
}

YGG_LIBRARY_IMPL(YGG_NAMESPACE, CPU, m) {
  m.impl("linear", &linear);
  m.impl("linear_unbiased", &linear_unbiased);
  m.impl("embedding", &embedding);
  m.impl("tree_attention", &tree_attention);
  m.impl("kv_write", &kv_write);
  m.impl("kv_commit", &kv_commit);
  m.impl("keyed_select", &keyed_select);
  m.impl("argmax", &argmax);
  m.impl("silu_mul", &silu_mul);
  m.impl("materialize", &materialize);
  m.impl("top_shares", &top_shares);
}
