// The Transformer, pre-norm or post-norm, with an actor at the attention to the source, or behind every sublayer.
#pragma once

#include "actor.h"
#include "attention.h"

namespace tg {

enum Activation { kRelu = 0, kGelu = 1, kTanh = 2, kLinear = 3 };

inline void activate(int activation, float* x, int n) {
  switch (activation) {
    case kRelu:
      map(x, n, [](V v) { return v > splat(0.f) ? v : splat(0.f); });
      break;
    case kTanh:
      map(x, n, [](V v) { return tanh(v); });
      break;
    case kGelu:
      for (int i = 0; i < n; ++i) x[i] = 0.5f * x[i] * (1.f + std::erf(x[i] * 0.70710678f));
      break;
  }
}

struct TransformerLayer {
  const Matrix *qkv, *out, *fc1, *fc2;
  const Norm *self_norm, *final_norm;
  TransformerLayer(const Tensors& tensors, const std::string& at)
      : qkv(tensors.matrix(at + ".self.qkv")),
        out(tensors.matrix(at + ".self.out")),
        fc1(tensors.matrix(at + ".fc1")),
        fc2(tensors.matrix(at + ".fc2")),
        self_norm(tensors.norm(at + ".self.norm")),
        final_norm(tensors.norm(at + ".norm")) {}
};

struct TransformerDecoderLayer : TransformerLayer {
  const Matrix *cross_q, *cross_kv, *cross_out;
  const Norm* cross_norm;
  Actor actor, self_actor, ffn_actor;
  TransformerDecoderLayer(const Tensors& tensors, const std::string& at)
      : TransformerLayer(tensors, at),
        cross_q(tensors.matrix(at + ".cross.q")),
        cross_kv(tensors.matrix(at + ".cross.kv")),
        cross_out(tensors.matrix(at + ".cross.out")),
        cross_norm(tensors.norm(at + ".cross.norm")),
        actor(tensors, at + ".actor"),
        self_actor(tensors, at + ".self.actor", kGate),
        ffn_actor(tensors, at + ".ffn.actor", kGate) {}
};

// Of encoder and decoder alike
template <class Layer>
struct TransformerStack {
  int dim, heads;
  bool pre_norm;
  float scale;  // of embeddings
  const Embedding* embedding;
  const Norm *embedding_norm, *top_norm;
  const float* positions;
  std::vector<Layer> layers;

  TransformerStack(const Tensors& tensors, const std::string& side, const char* dim_name)
      : dim(tensors.integer(dim_name)),
        heads(tensors.integer(side + "_heads")),
        pre_norm(tensors.integer(side + "_pre_norm") != 0),
        scale(tensors.number(side + "_scale")),
        embedding(tensors.embedding(side + ".embedding")),
        embedding_norm(tensors.norm_or_null(side + ".embedding.norm")),
        top_norm(tensors.norm_or_null(side + ".norm")),
        positions(tensors.table_or_null(side + ".positions")) {
    const int count = tensors.integer(side + "_layers");
    for (int i = 0; i < count; ++i) layers.emplace_back(tensors, side + "." + std::to_string(i));
  }
  void embed(int token, int position, float* x) const {
    embedding->look_up(token, scale, x);
    if (positions) add(x, positions + static_cast<size_t>(position) * dim, dim);
    if (embedding_norm) embedding_norm->apply(x, x);
  }
  int widest() const {
    int wide = 0;
    for (auto& layer : layers) wide = std::max(wide, layer.fc1->rows);
    return wide;
  }
};

struct Transformer : Family {
  TransformerStack<TransformerLayer> encoder;
  TransformerStack<TransformerDecoderLayer> stack;
  const Matrix* output;
  int activation;
  explicit Transformer(const Tensors& tensors)
      : encoder(tensors, "encoder", "encoder_dim"),
        stack(tensors, "decoder", "dim"),
        output(tensors.matrix("output")),
        activation(tensors.integer("activation")) {}
  std::unique_ptr<Decoder> decoder(int threads) const override;
};

class TransformerDecoder : public Decoder {
 public:
  TransformerDecoder(const Transformer& model, int threads)
      : Decoder(threads),
        model_(model),
        stack_(model.stack),
        acting_([this](auto&&... arguments) { mul(arguments...); }) {}

  void begin(const Sources& sources) override {
    sources_ = sources;
    encode();
    // Keys and values of the source, once; those of the target, as they come.
    const int rows = sources.starts.back(), dim = stack_.dim;
    qkv_.resize(std::max(qkv_.size(), static_cast<size_t>(rows) * 2 * dim));
    places_.assign(1, 0);
    for (int b = 0; b < sources.count(); ++b) places_.push_back(places_.back() + packed(b).size());
    for (auto& layer : stack_.layers) {
      mul(*layer.cross_kv, states_.data(), model_.encoder.dim, rows, qkv_.data(), 2 * dim);
      cross_.emplace_back(places_.back());
      for (int b = 0; b < sources.count(); ++b) {
        const float* keys = row(qkv_, sources.starts[b], 2 * dim);
        packed(b).pack(keys, keys + dim, 2 * dim, cross_.back().data() + places_[b]);
      }
      caches_.emplace_back(2 * dim);
      memories_.emplace_back().begin(sources.count(), layer.actor.memory());
    }
  }

  const float* step(const Rows& rows) override {
    const int m = rows.count(), dim = stack_.dim;
    reserve(m, dim, stack_.widest());
    both_.resize(std::max(both_.size(), static_cast<size_t>(m) * 2 * dim));
    x_.resize(std::max(x_.size(), static_cast<size_t>(m) * dim));
    ancestors_.follow(rows);
    for (int r = 0; r < m; ++r) stack_.embed(rows.token[r], rows.step, row(x_, r, dim));
    for (size_t i = 0; i < stack_.layers.size(); ++i) decode_layer(i, rows);
    if (stack_.top_norm)
      for (int r = 0; r < m; ++r) stack_.top_norm->apply(row(x_, r, dim), row(x_, r, dim));
    return x_.data();
  }
  const Matrix& output() const override { return *model_.output; }
  Acting& acting() override { return acting_; }

 private:
  const Transformer& model_;
  const TransformerStack<TransformerDecoderLayer>& stack_;
  Acting acting_;
  Sources sources_;
  std::vector<float> states_;          // what the encoder gives
  std::vector<size_t> places_;         // of sentences in each of `cross_`
  std::vector<Aligned<float>> cross_;  // of each layer, keys and values of the source, packed
  std::vector<StepCache> caches_;      // of each layer, keys and values of the target
  std::vector<Memory> memories_;       // of each layer's actor
  std::vector<float> x_, qkv_, answer_, both_, asked_, hidden_, weights_, room_, packed_;
  std::vector<const float*> keys_;
  Ancestors ancestors_;

  void reserve(int rows, int dim, int wide) {
    const size_t n = rows;
    qkv_.resize(std::max(qkv_.size(), n * 3 * dim));
    answer_.resize(std::max(answer_.size(), n * dim));
    hidden_.resize(std::max(hidden_.size(), n * wide));
  }
  PackedSentence packed(int b) const { return {sources_.length(b), stack_.heads, stack_.dim / stack_.heads}; }
  float* weights(int n) {
    grow(weights_, static_cast<size_t>(stack_.heads) * (n + kLanes));
    return weights_.data();
  }

  void hidden_of(const TransformerLayer& layer, const float* x, int ldx, int m) {
    const int wide = layer.fc1->rows;
    mul(*layer.fc1, x, ldx, m, hidden_.data(), wide);
    for (int r = 0; r < m; ++r) activate(model_.activation, row(hidden_, r, wide), wide);
  }

  // x += f(x), with the layer norm before f or after the sum
  void feed_forward(const TransformerLayer& layer, bool pre_norm, std::vector<float>& x, int dim, int m) {
    const float* in = x.data();
    if (pre_norm) {
      for (int r = 0; r < m; ++r) layer.final_norm->apply(row(x, r, dim), row(answer_, r, dim));
      in = answer_.data();
    }
    hidden_of(layer, in, dim, m);
    mul(*layer.fc2, hidden_.data(), layer.fc1->rows, m, answer_.data(), dim);
    for (int r = 0; r < m; ++r) {
      float* to = row(x, r, dim);
      add(to, row(answer_, r, dim), dim);
      if (!pre_norm) layer.final_norm->apply(to, to);
    }
  }

  void encode() {
    const auto& stack = model_.encoder;
    const int rows = sources_.starts.back(), dim = stack.dim, heads = stack.heads;
    states_.resize(static_cast<size_t>(rows) * dim);
    std::vector<float> normal(states_.size());
    reserve(rows, dim, stack.widest());
    for (int b = 0; b < sources_.count(); ++b)
      for (int i = 0; i < sources_.length(b); ++i) {
        const int at = sources_.starts[b] + i;
        stack.embed(sources_.tokens[at], i, row(states_, at, dim));
      }
    for (auto& layer : stack.layers) {
      const float* in = states_.data();
      if (stack.pre_norm) {
        for (int r = 0; r < rows; ++r) layer.self_norm->apply(row(states_, r, dim), row(normal, r, dim));
        in = normal.data();
      }
      mul(*layer.qkv, in, dim, rows, qkv_.data(), 3 * dim);
      for (int b = 0; b < sources_.count(); ++b) {
        const PackedSentence sentence(sources_.length(b), heads, dim / heads);
        const float* first = row(qkv_, sources_.starts[b], 3 * dim);
        packed_.resize(std::max(packed_.size(), sentence.size()));
        sentence.pack(first + dim, first + 2 * dim, 3 * dim, packed_.data());
        sentence.attend(packed_.data(), first, 3 * dim, sources_.length(b), row(normal, sources_.starts[b], dim), dim,
                        room_);
      }
      mul(*layer.out, normal.data(), dim, rows, answer_.data(), dim);
      for (int r = 0; r < rows; ++r) {
        float* to = row(states_, r, dim);
        add(to, row(answer_, r, dim), dim);
        if (!stack.pre_norm) layer.self_norm->apply(to, to);
      }
      feed_forward(layer, stack.pre_norm, states_, dim, rows);
    }
    if (stack.top_norm)
      for (int r = 0; r < rows; ++r) stack.top_norm->apply(row(states_, r, dim), row(states_, r, dim));
  }

  void decode_layer(size_t index, const Rows& rows) {
    const auto& layer = stack_.layers[index];
    const int m = rows.count(), dim = stack_.dim, heads = stack_.heads;
    const bool pre_norm = stack_.pre_norm;

    // Self attention
    const float* in = x_.data();
    if (pre_norm) {
      for (int r = 0; r < m; ++r) layer.self_norm->apply(row(x_, r, dim), row(answer_, r, dim));
      in = answer_.data();
    }
    if (layer.self_actor) asked_.assign(in, in + static_cast<size_t>(m) * dim);
    mul(*layer.qkv, in, dim, m, qkv_.data(), 3 * dim);
    StepCache& cache = caches_[index];
    float* own = cache.add(m);
    keys_.resize(rows.step + 1);
    for (int r = 0; r < m; ++r)
      std::memcpy(own + static_cast<size_t>(r) * 2 * dim, row(qkv_, r, 3 * dim) + dim, 2 * dim * sizeof(float));
    for (int r = 0; r < m; ++r) {
      const int* ancestors = ancestors_.of(r);
      for (int t = 0; t <= rows.step; ++t) keys_[t] = cache.at(t, ancestors[t]);
      attend(
          row(qkv_, r, 3 * dim), [this](int t) { return keys_[t]; }, dim, rows.step + 1, heads, dim / heads,
          row(answer_, r, dim), weights(rows.step + 1));
    }
    // `both` holds [h, e] of an actor, so that neither is copied more than once: h first, e in the second half
    if (layer.self_actor) {
      for (int r = 0; r < m; ++r) std::memcpy(row(both_, r, 2 * dim), row(asked_, r, dim), dim * sizeof(float));
      mul(*layer.out, answer_.data(), dim, m, both_.data() + dim, 2 * dim);
      for (int r = 0; r < m; ++r) {
        float* x = row(x_, r, dim);
        add(x, row(both_, r, 2 * dim) + dim, dim);
        if (!pre_norm) layer.self_norm->apply(x, x);
      }
      acting_.act(layer.self_actor, rows, both_.data(), 2 * dim, x_.data(), dim, memories_[index]);
      for (int r = 0; r < m; ++r) {
        float *x = row(x_, r, dim), *h = row(both_, r, 2 * dim);
        if (pre_norm)
          layer.cross_norm->apply(x, h);
        else
          std::memcpy(h, x, dim * sizeof(float));
      }
    } else {
      mul(*layer.out, answer_.data(), dim, m, qkv_.data(), dim);
      for (int r = 0; r < m; ++r) {
        float* x = row(x_, r, dim);
        add(x, row(qkv_, r, dim), dim);
        (pre_norm ? layer.cross_norm : layer.self_norm)->apply(x, row(both_, r, 2 * dim));
      }
    }

    // Attention to the source
    mul(*layer.cross_q, both_.data(), 2 * dim, m, qkv_.data(), dim);
    for (int r = 0, end; r < m; r = end) {  // for all rows of a sentence together
      const int b = rows.sentence[r];
      for (end = r + 1; end < m && rows.sentence[end] == b;) ++end;
      packed(b).attend(cross_[index].data() + places_[b], row(qkv_, r, dim), dim, end - r, row(answer_, r, dim), dim,
                       room_, acting_.trace ? acting_.trace->next_attention() : nullptr);
    }
    mul(*layer.cross_out, answer_.data(), dim, m, both_.data() + dim, 2 * dim);
    for (int r = 0; r < m; ++r) {
      float* x = row(x_, r, dim);
      const float* h = row(both_, r, 2 * dim);
      if (pre_norm) {
        add(x, h + dim, dim);
      } else {
        std::memcpy(x, h, dim * sizeof(float));
        add(x, h + dim, dim);
        layer.cross_norm->apply(x, x);
      }
    }
    if (layer.actor) acting_.act(layer.actor, rows, both_.data(), 2 * dim, x_.data(), dim, memories_[index]);
    if (!layer.ffn_actor) return feed_forward(layer, pre_norm, x_, dim, m);
    // What it takes and gives is what the actor sees
    for (int r = 0; r < m; ++r) {
      float *x = row(x_, r, dim), *h = row(both_, r, 2 * dim);
      if (pre_norm)
        layer.final_norm->apply(x, h);
      else
        std::memcpy(h, x, dim * sizeof(float));
    }
    hidden_of(layer, both_.data(), 2 * dim, m);
    mul(*layer.fc2, hidden_.data(), layer.fc1->rows, m, both_.data() + dim, 2 * dim);
    for (int r = 0; r < m; ++r) {
      float* x = row(x_, r, dim);
      add(x, row(both_, r, 2 * dim) + dim, dim);
      if (!pre_norm) layer.final_norm->apply(x, x);
    }
    acting_.act(layer.ffn_actor, rows, both_.data(), 2 * dim, x_.data(), dim, memories_[index]);
  }
};

inline std::unique_ptr<Decoder> Transformer::decoder(int threads) const {
  return std::make_unique<TransformerDecoder>(*this, threads);
}

}  // namespace tg
