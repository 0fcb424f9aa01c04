// The greedy loop of a Transformer with gate actors, one sentence at a time, over ATen.
//
// The encoder is ATen's own operators. In the decoder every product is a matrix and one vector, and what is between
// two products is a few hundred numbers: there a call of an operator costs more than its work, so the small parts are
// loops over preallocated memory, which the compiler makes vector code of (`omp simd`).

#include <immintrin.h>
#include <torch/extension.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

using at::Tensor;
using Weights = std::unordered_map<std::string, Tensor>;
using Buffer = std::vector<float>;

// The products of four rows, `stride` apart, with x. (Written out: of plain loops, with `omp simd` or of gcc's vector
// types in arrays, gcc 12 makes code that takes three times as long.)
void dots4(const float* rows, int64_t stride, const float* x, int64_t width, float* sums) {
  const float *r0 = rows, *r1 = r0 + stride, *r2 = r1 + stride, *r3 = r2 + stride;
  __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) {
    const __m256 p = _mm256_loadu_ps(x + i), q = _mm256_loadu_ps(x + i + 8);
    a0 = _mm256_fmadd_ps(_mm256_loadu_ps(r0 + i), p, a0), b0 = _mm256_fmadd_ps(_mm256_loadu_ps(r0 + i + 8), q, b0);
    a1 = _mm256_fmadd_ps(_mm256_loadu_ps(r1 + i), p, a1), b1 = _mm256_fmadd_ps(_mm256_loadu_ps(r1 + i + 8), q, b1);
    a2 = _mm256_fmadd_ps(_mm256_loadu_ps(r2 + i), p, a2), b2 = _mm256_fmadd_ps(_mm256_loadu_ps(r2 + i + 8), q, b2);
    a3 = _mm256_fmadd_ps(_mm256_loadu_ps(r3 + i), p, a3), b3 = _mm256_fmadd_ps(_mm256_loadu_ps(r3 + i + 8), q, b3);
  }
  a0 = _mm256_add_ps(a0, b0), a1 = _mm256_add_ps(a1, b1), a2 = _mm256_add_ps(a2, b2), a3 = _mm256_add_ps(a3, b3);
  const __m256 both = _mm256_hadd_ps(_mm256_hadd_ps(a0, a1), _mm256_hadd_ps(a2, a3));
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
  for (; i < width; ++i)
    for (int r = 0; r < 4; ++r) sums[r] += rows[r * stride + i] * x[i];
}

// As above for any number of rows.
void dots(const float* rows, int64_t count, int64_t stride, const float* x, int64_t width, float* sums) {
  int64_t r = 0;
  for (; r + 4 <= count; r += 4) dots4(rows + r * stride, stride, x, width, sums + r);
  for (; r < count; ++r) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += rows[r * stride + i] * x[i];
    sums[r] = sum;
  }
}

struct Linear {
  Tensor weight, bias;  // out x in; out
  int64_t out() const { return weight.size(0); }

  // y = W x + b for one vector, the rows shared among the threads.
  void operator()(const float* x, float* y, bool relu = false) const {
    const int64_t width = weight.size(1);
    const float* w = weight.const_data_ptr<float>();
    const float* b = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
    at::parallel_for(0, out(), std::max<int64_t>(1, GRAIN / width), [&](int64_t begin, int64_t end) {
      dots(w + begin * width, end - begin, width, x, width, y + begin);
      if (b)
        for (int64_t i = begin; i < end; ++i) y[i] += b[i];
      if (relu)
        for (int64_t i = begin; i < end; ++i) y[i] = std::max(y[i], 0.0f);
    });
  }

  // Products for one thread: some tens of thousands, before a second thread is worth waking.
  static constexpr int64_t GRAIN = 32768;

  Tensor operator()(const Tensor& x) const { return at::linear(x, weight, bias); }
};

struct Norm {
  Tensor weight, bias;
  double eps;

  // y = norm(x + y)
  void add(const float* x, float* y) const {
    const int64_t width = weight.numel();
    const float *w = weight.const_data_ptr<float>(), *b = bias.const_data_ptr<float>();
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += y[i] += x[i];
    const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += (y[i] - mean) * (y[i] - mean);
    const float scale = 1.0f / std::sqrt(squares / width + static_cast<float>(eps));
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) y[i] = (y[i] - mean) * scale * w[i] + b[i];
  }

  Tensor operator()(const Tensor& x) const { return at::layer_norm(x, {weight.numel()}, weight, bias, eps); }
};

// One query of all heads over `length` keys and values, each a row of all heads, rows `stride` apart.
void attend(const float* q, const float* keys, const float* values, int64_t length, int64_t stride, int64_t heads,
            int64_t width, float* scores, float* answer) {
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t at = head * width;
    dots(keys + at, length, stride, q + at, width, scores);
    const float top = *std::max_element(scores, scores + length);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t t = 0; t < length; ++t) sum += scores[t] = std::exp(scores[t] - top);
    float* a = answer + at;
    std::fill(a, a + width, 0.0f);
    for (int64_t t = 0; t < length; ++t) {
      const float *v = values + t * stride + at, share = scores[t] / sum;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) a[i] += share * v[i];
    }
  }
}

struct Layer {
  Linear qkv, out, cross_q, cross_out, gate, fc1, fc2;
  Norm norm, cross_norm, final_norm;
  Buffer cache;  // rows of [k, v], one for each step
};

class Greedy {
 public:
  Greedy(const Weights& weights, int64_t encoder_layers, int64_t decoder_layers, int64_t heads, double encoder_scale,
         double decoder_scale, double eps, int64_t pad, int64_t eos)
      : heads_(heads), encoder_scale_(encoder_scale), decoder_scale_(decoder_scale), eps_(eps), pad_(pad), eos_(eos) {
    for (int64_t i = 0; i < encoder_layers; ++i)
      encoder_.push_back(layer(weights, "encoder.layers." + std::to_string(i)));
    for (int64_t i = 0; i < decoder_layers; ++i)
      decoder_.push_back(layer(weights, "step.layers." + std::to_string(i)));
    source_ = weights.at("encoder.embed.weight"), source_positions_ = weights.at("encoder.positions");
    target_ = weights.at("step.embed.weight"), target_positions_ = weights.at("step.positions");
    memory_ = linear(weights, "encoder.memory"), output_ = linear(weights, "step.output");
    dim_ = target_.size(1);
    h_.resize(2 * dim_), x_.resize(dim_), answer_.resize(dim_), actions_.resize(2 * dim_);
    logits_.resize(output_.out()), hidden_.resize(decoder_[0].fc1.out()), qkv_.resize(3 * dim_);
  }

  std::vector<int64_t> translate(const std::vector<int64_t>& tokens, int64_t max_len) {
    c10::InferenceMode inference;
    TORCH_CHECK_VALUE(max_len <= target_positions_.size(0), "max_len is beyond the table of positions");
    const Tensor memory = encode(at::tensor(tokens, at::kLong));
    scores_.resize(std::max<int64_t>(max_len, tokens.size()));
    for (Layer& layer : decoder_) layer.cache.resize(max_len * 2 * dim_);
    std::vector<int64_t> result;
    for (int64_t t = 0, token = eos_; t < max_len; ++t) {
      token = step(token, t, memory);
      result.push_back(token);
      if (token == eos_) return result;
    }
    result.push_back(eos_);
    return result;
  }

 private:
  // S -> the keys and values of all decoder layers, S x (L 2 D)
  Tensor encode(const Tensor& tokens) const {
    const int64_t length = tokens.numel();
    Tensor x = source_.index_select(0, tokens).mul_(encoder_scale_).add_(source_positions_.narrow(0, 0, length));
    for (const Layer& layer : encoder_) {
      const auto qkv = layer.qkv(x).view({1, length, 3, heads_, -1}).permute({2, 0, 3, 1, 4}).unbind();
      // The queries' scale is in their weights.
      const Tensor answer = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, false, 1.0);
      x = layer.norm(layer.out(answer.transpose(1, 2).reshape({length, -1})).add_(x));
      x = layer.final_norm(layer.fc2(layer.fc1(x).relu_()).add_(x));
    }
    return memory_(x);
  }

  int64_t step(int64_t token, int64_t t, const Tensor& memory) {
    const int64_t width = dim_ / heads_, stride = memory.size(1);
    const float* embedding = target_.const_data_ptr<float>() + token * dim_;
    const float* position = target_positions_.const_data_ptr<float>() + t * dim_;
    for (int64_t i = 0; i < dim_; ++i) x_[i] = static_cast<float>(decoder_scale_) * embedding[i] + position[i];
    float *x = x_.data(), *h = h_.data(), *e = h + dim_;  // [h, e] is what the actor sees
    const float* other = memory.const_data_ptr<float>();
    for (Layer& layer : decoder_) {
      layer.qkv(x, qkv_.data());
      float* own = layer.cache.data();
      std::copy_n(qkv_.data() + dim_, 2 * dim_, own + t * 2 * dim_);
      attend(qkv_.data(), own, own + dim_, t + 1, 2 * dim_, heads_, width, scores_.data(), answer_.data());
      layer.out(answer_.data(), h);
      layer.norm.add(x, h);
      layer.cross_q(h, qkv_.data());
      attend(qkv_.data(), other, other + dim_, memory.size(0), stride, heads_, width, scores_.data(), answer_.data());
      layer.cross_out(answer_.data(), e);
      std::copy_n(e, dim_, x);
      layer.cross_norm.add(h, x);
      if (layer.gate.weight.defined()) {
        layer.gate(h, actions_.data());
        const float *z = actions_.data(), *u = z + dim_;
#pragma omp simd
        for (int64_t i = 0; i < dim_; ++i) x[i] += std::tanh(u[i]) / (1.0f + std::exp(-z[i]));
      }
      layer.fc1(x, hidden_.data(), true);
      layer.fc2(hidden_.data(), answer_.data());
      layer.final_norm.add(answer_.data(), x);
      other += 2 * dim_;
    }
    output_(x, logits_.data());
    logits_[pad_] = -std::numeric_limits<float>::infinity();
    if (t == 0) logits_[eos_] = logits_[pad_];  // as fairseq: a translation is not empty
    return std::max_element(logits_.begin(), logits_.end()) - logits_.begin();
  }

  static Tensor find(const Weights& weights, const std::string& name) {
    const auto found = weights.find(name);
    return found == weights.end() ? Tensor() : found->second.contiguous();
  }
  static Linear linear(const Weights& weights, const std::string& name) {
    return {find(weights, name + ".weight"), find(weights, name + ".bias")};
  }
  Layer layer(const Weights& w, const std::string& name) const {
    auto norm = [&](const std::string& part) {
      return Norm{find(w, name + part + ".weight"), find(w, name + part + ".bias"), eps_};
    };
    return {linear(w, name + ".qkv"), linear(w, name + ".out"), linear(w, name + ".cross_q"),
            linear(w, name + ".cross_out"), {find(w, name + ".gate"), {}}, linear(w, name + ".fc1"),
            linear(w, name + ".fc2"), norm(".norm"), norm(".cross_norm"), norm(".final_norm"), {}};
  }

  int64_t heads_, dim_;
  double encoder_scale_, decoder_scale_, eps_;
  int64_t pad_, eos_;
  std::vector<Layer> encoder_, decoder_;
  Tensor source_, source_positions_, target_, target_positions_;
  Linear memory_, output_;
  Buffer x_, h_, qkv_, answer_, actions_, hidden_, logits_, scores_;
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::class_<Greedy>(module, "Greedy", py::module_local())
      .def(py::init<const Weights&, int64_t, int64_t, int64_t, double, double, double, int64_t, int64_t>())
      .def("translate", &Greedy::translate, py::call_guard<py::gil_scoped_release>());
}
