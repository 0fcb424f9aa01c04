// Greedy decoding: the encoder, the decoder's step and the loop around it.
//
// Sentences of a batch are kept one after another, without padding. In the decoder a sentence keeps its place in the
// caches until it is finished, and only unfinished ones take part in a step.
#pragma once

#include "model.h"

namespace tg {

// Row i of rows that are `ld` floats apart
template <class Rows>
inline auto row(Rows& rows, size_t i, size_t ld) {
  return &rows[i * ld];
}

class Call {  // one batch on its way through the model
 public:
  Call(const Model& model, int threads)
      : model_(model), config_(model.config), threads_(threads), output_(model.matrices.at("output")) {}

  struct Request {
    const int32_t* tokens;   // of all sentences, one after another, each with its eos
    const int32_t* lengths;  // of each sentence
    const int32_t* limits;   // most tokens of each translation, its eos not counted
    const int32_t* prefix;   // first tokens of each translation, pad where there is no more; may be null
    int batch, prefix_length, min_length;
    float unk_penalty;
  };

  void translate(const Request& request, int32_t* out, int stride, int32_t* out_lengths, float* scores) {
    const int batch = request.batch, dim = config_.dim;
    std::vector<int> starts(batch + 1, 0);
    for (int b = 0; b < batch; ++b) starts[b + 1] = starts[b] + request.lengths[b];
    encode(request.tokens, starts);

    // Keys and values of the source, once; those of the target, as they come.
    const int source = starts[batch], limit = *std::max_element(request.limits, request.limits + batch) + 1;
    std::vector<Aligned<float>> cross, cache;
    for (auto& layer : model_.decoder) {
      cross.emplace_back(static_cast<size_t>(source) * 2 * dim);
      mul(*layer.cross_kv, states_.data(), config_.encoder_dim, source, cross.back().data(), 2 * dim);
      cache.emplace_back(static_cast<size_t>(batch) * limit * 2 * dim);
    }
    std::vector<std::vector<float>> memory(model_.decoder.size());
    for (size_t i = 0; i < memory.size(); ++i)
      if (model_.decoder[i].actor == kRecurrent)
        memory[i].assign(static_cast<size_t>(batch) * config_.actor_hidden, 0.f);

    std::vector<int> active(batch), last(batch, config_.eos);
    for (int b = 0; b < batch; ++b) active[b] = b;
    const Embedding& embedding = model_.embeddings.at("decoder.embedding");
    const Norm* embedding_norm = model_.optional_norm("decoder.embedding.norm");
    const Norm* top_norm = model_.optional_norm("decoder.norm");
    const float* positions = model_.tables.count("decoder.positions") ? model_.tables.at("decoder.positions") : nullptr;
    const int vocabulary = config_.vocabulary;
    reserve(batch);
    logits_.resize(static_cast<size_t>(batch) * vocabulary);

    for (int step = 0; !active.empty(); ++step) {
      if (!scores) {  // at its limit a sentence has nothing left to choose
        int open = 0;
        for (int b : active) {
          if (step < request.limits[b]) {
            active[open++] = b;
          } else {
            out[static_cast<size_t>(b) * stride + step] = config_.eos;
            out_lengths[b] = step + 1;
          }
        }
        active.resize(open);
        if (!open) break;
      }
      const int m = static_cast<int>(active.size());
      for (int r = 0; r < m; ++r) {
        float* x = row(x_, r, dim);
        embedding.look_up(last[active[r]], config_.decoder_scale, x);
        if (positions) add(x, positions + static_cast<size_t>(step) * dim, dim);
        if (embedding_norm) embedding_norm->apply(x, x);
      }
      for (size_t i = 0; i < model_.decoder.size(); ++i)
        decode_layer(model_.decoder[i], m, active, step, limit, cache[i].data(), cross[i].data(), starts, memory[i]);
      if (top_norm)
        for (int r = 0; r < m; ++r) top_norm->apply(row(x_, r, dim), row(x_, r, dim));
      mul(output_, x_.data(), dim, m, logits_.data(), vocabulary);

      int kept = 0;
      for (int r = 0; r < m; ++r) {
        const int b = active[r];
        const int token = choose(row(logits_, r, vocabulary), b, step, request,
                                 scores ? &scores[static_cast<size_t>(b) * stride + step] : nullptr);
        out[static_cast<size_t>(b) * stride + step] = token;
        out_lengths[b] = step + 1;
        last[b] = token;
        if (token != config_.eos) active[kept++] = b;
      }
      active.resize(kept);
    }
  }

 private:
  const Model& model_;
  const Config& config_;
  const int threads_;
  const Matrix& output_;
  Rounded rounded_;
  std::vector<float> states_;                                     // what the encoder gives
  std::vector<float> x_, qkv_, answer_, both_, hidden_, logits_;  // of a step
  std::vector<float> maps_, factors_, gates_, weights_;

  void mul(const Matrix& w, const float* x, int ldx, int m, float* y, int ldy) {
    product(w, x, ldx, m, y, ldy, threads_, rounded_);
  }

  void reserve(int rows) {
    const size_t n = rows, dim = config_.dim;
    x_.resize(n * dim);
    qkv_.resize(n * 3 * dim);
    answer_.resize(n * dim);
    both_.resize(n * 2 * dim);
    size_t wide = 0, mapped = 0;
    for (auto& layer : model_.decoder) {
      wide = std::max<size_t>(wide, layer.fc1->rows);
      for (auto& maps : layer.maps) mapped = std::max<size_t>(mapped, maps.outputs());
    }
    hidden_.resize(n * wide);
    maps_.resize(n * mapped);
    gates_.resize(n * mapped);
  }

  void activate(float* x, int n) const {
    switch (config_.activation) {
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

  // x += f(x), with the layer norm before f or after the sum
  void feed_forward(const Layer& layer, bool pre_norm, std::vector<float>& x, int dim, int m) {
    const float* in = x.data();
    if (pre_norm) {
      for (int r = 0; r < m; ++r) layer.final_norm->apply(row(x, r, dim), row(answer_, r, dim));
      in = answer_.data();
    }
    const int wide = layer.fc1->rows;
    mul(*layer.fc1, in, dim, m, hidden_.data(), wide);
    for (int r = 0; r < m; ++r) activate(row(hidden_, r, wide), wide);
    mul(*layer.fc2, hidden_.data(), wide, m, answer_.data(), dim);
    for (int r = 0; r < m; ++r) {
      float* to = row(x, r, dim);
      add(to, row(answer_, r, dim), dim);
      if (!pre_norm) layer.final_norm->apply(to, to);
    }
  }

  void encode(const int32_t* tokens, const std::vector<int>& starts) {
    const int rows = starts.back(), dim = config_.encoder_dim, heads = config_.encoder_heads;
    const bool pre_norm = config_.encoder_pre_norm;
    const size_t n = rows;
    states_.resize(n * dim);
    qkv_.resize(n * 3 * dim);
    answer_.resize(n * dim);
    std::vector<float> normal(n * dim);
    size_t wide = 0;
    for (auto& layer : model_.encoder) wide = std::max<size_t>(wide, layer.fc1->rows);
    hidden_.resize(n * wide);
    int longest = 0;
    const Embedding& embedding = model_.embeddings.at("encoder.embedding");
    const Norm* embedding_norm = model_.optional_norm("encoder.embedding.norm");
    const Norm* top_norm = model_.optional_norm("encoder.norm");
    const float* positions = model_.tables.count("encoder.positions") ? model_.tables.at("encoder.positions") : nullptr;
    for (size_t b = 0; b + 1 < starts.size(); ++b) {
      longest = std::max(longest, starts[b + 1] - starts[b]);
      for (int i = starts[b]; i < starts[b + 1]; ++i) {
        float* x = row(states_, i, dim);
        embedding.look_up(tokens[i], config_.encoder_scale, x);
        if (positions) add(x, positions + static_cast<size_t>(i - starts[b]) * dim, dim);
        if (embedding_norm) embedding_norm->apply(x, x);
      }
    }
    weights_.resize(longest + kLanes);
    for (auto& layer : model_.encoder) {
      const float* in = states_.data();
      if (pre_norm) {
        for (int r = 0; r < rows; ++r) layer.self_norm->apply(row(states_, r, dim), row(normal, r, dim));
        in = normal.data();
      }
      mul(*layer.qkv, in, dim, rows, qkv_.data(), 3 * dim);
      for (size_t b = 0; b + 1 < starts.size(); ++b) {
        const float* keys = &qkv_[static_cast<size_t>(starts[b]) * 3 * dim + dim];
        for (int i = starts[b]; i < starts[b + 1]; ++i)
          attend(row(qkv_, i, 3 * dim), keys, keys + dim, 3 * dim, starts[b + 1] - starts[b], heads, dim / heads,
                 row(normal, i, dim), weights_.data());
      }
      mul(*layer.out, normal.data(), dim, rows, answer_.data(), dim);
      for (int r = 0; r < rows; ++r) {
        float* to = row(states_, r, dim);
        add(to, row(answer_, r, dim), dim);
        if (!pre_norm) layer.self_norm->apply(to, to);
      }
      feed_forward(layer, pre_norm, states_, dim, rows);
    }
    if (top_norm)
      for (int r = 0; r < rows; ++r) top_norm->apply(row(states_, r, dim), row(states_, r, dim));
  }

  void decode_layer(const Layer& layer, int m, const std::vector<int>& active, int step, int limit, float* cache,
                    const float* cross, const std::vector<int>& starts, std::vector<float>& memory) {
    const int dim = config_.dim, heads = config_.decoder_heads;
    const bool pre_norm = config_.decoder_pre_norm;
    int longest = step + 1;
    for (int b : active) longest = std::max(longest, starts[b + 1] - starts[b]);
    if (weights_.size() < static_cast<size_t>(longest + kLanes)) weights_.resize(2 * longest + kLanes);

    // Self attention. `both` holds [h, e] of the actor, so that neither is copied: h in the first half, e in the
    // second.
    const float* in = x_.data();
    if (pre_norm) {
      for (int r = 0; r < m; ++r) layer.self_norm->apply(row(x_, r, dim), row(answer_, r, dim));
      in = answer_.data();
    }
    mul(*layer.qkv, in, dim, m, qkv_.data(), 3 * dim);
    for (int r = 0; r < m; ++r) {
      float* own = cache + static_cast<size_t>(active[r]) * limit * 2 * dim;
      const float* q = row(qkv_, r, 3 * dim);
      std::memcpy(own + static_cast<size_t>(step) * 2 * dim, q + dim, 2 * dim * sizeof(float));
      attend(q, own, own + dim, 2 * dim, step + 1, heads, dim / heads, row(answer_, r, dim), weights_.data());
    }
    mul(*layer.out, answer_.data(), dim, m, qkv_.data(), dim);
    for (int r = 0; r < m; ++r) {
      float* x = row(x_, r, dim);
      float* h = row(both_, r, 2 * dim);
      add(x, row(qkv_, r, dim), dim);
      (pre_norm ? layer.cross_norm : layer.self_norm)->apply(x, h);
    }

    // Attention to the source
    mul(*layer.cross_q, both_.data(), 2 * dim, m, qkv_.data(), dim);
    for (int r = 0; r < m; ++r) {
      const int b = active[r];
      const float* keys = cross + static_cast<size_t>(starts[b]) * 2 * dim;
      attend(row(qkv_, r, dim), keys, keys + dim, 2 * dim, starts[b + 1] - starts[b], heads, dim / heads,
             row(answer_, r, dim), weights_.data());
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
    if (layer.actor != kNone) act(layer, m, active, memory);
    feed_forward(layer, pre_norm, x_, dim, m);
  }

  // y = [x U_1, x U_2, ...]
  void take(const Maps& maps, const float* x, int ldx, int m, float* y) {
    const int outputs = maps.outputs();
    if (maps.full) return mul(*maps.full, x, ldx, m, y, outputs);
    const int factors = maps.down->rows;
    factors_.resize(static_cast<size_t>(m) * factors);
    mul(*maps.down, x, ldx, m, factors_.data(), factors);
    int in = 0, out = 0;
    for (auto* up : maps.up) {
      mul(*up, factors_.data() + in, factors, m, y + out, outputs);
      in += up->cols;
      out += up->rows;
    }
  }

  // x += the action on [h, e]; the equations are those of fairseq_tg/actors.py
  void act(const Layer& layer, int m, const std::vector<int>& active, std::vector<float>& memory) {
    const int dim = config_.dim;
    take(layer.maps[0], both_.data(), 2 * dim, m, maps_.data());
    int width = layer.maps[0].outputs();
    if (layer.actor == kRecurrent) return act_recurrent(layer, m, active, memory);
    for (size_t i = 1; i < layer.maps.size(); ++i) {  // the hidden layers of ff and ff2
      for (int r = 0; r < m; ++r) map(row(maps_, r, width), width, [](V v) { return sigmoid(v); });
      std::swap(maps_, gates_);
      take(layer.maps[i], gates_.data(), width, m, maps_.data());
      width = layer.maps[i].outputs();
    }
    for (int r = 0; r < m; ++r) {
      float* x = row(x_, r, dim);
      float* y = row(maps_, r, width);
      if (layer.actor == kGate) {
        map(y, y + dim, dim, [](V gate, V action) { return sigmoid(gate) * tanh(action); });
        add(x, y, dim);
      } else {
        map(x, y, dim, [](V v, V action) { return v + tanh(action); });
      }
    }
  }

  void act_recurrent(const Layer& layer, int m, const std::vector<int>& active, std::vector<float>& memory) {
    const int n = config_.actor_hidden, dim = config_.dim;
    std::vector<float> s(static_cast<size_t>(m) * n), reset(s.size()), candidate(s.size());
    for (int r = 0; r < m; ++r) std::memcpy(row(s, r, n), row(memory, active[r], n), n * sizeof(float));
    take(layer.maps[1], s.data(), n, m, gates_.data());  // s W^z, s W^r beside maps_: x U^z, x U^r, x U^h
    for (int r = 0; r < m; ++r) {
      float* gates = row(gates_, r, 2 * n);
      map(gates, row(maps_, r, 3 * n), 2 * n, [](V a, V b) { return sigmoid(a + b); });
      std::memcpy(row(reset, r, n), row(s, r, n), n * sizeof(float));
      map(row(reset, r, n), gates + n, n, [](V state, V gate) { return state * gate; });
    }
    take(layer.maps[2], reset.data(), n, m, candidate.data());
    for (int r = 0; r < m; ++r) {
      float* state = row(s, r, n);
      float* fresh = row(candidate, r, n);
      map(fresh, &maps_[static_cast<size_t>(r) * 3 * n + 2 * n], n, [](V a, V b) { return tanh(a + b); });
      map(state, fresh, n, [](V old, V now) { return old - now; });
      map(state, row(gates_, r, 2 * n), n, [](V difference, V z) { return difference * z; });
      add(state, fresh, n);  // (1 - z) now + z old
      std::memcpy(row(memory, active[r], n), state, n * sizeof(float));
    }
    take(layer.maps[3], s.data(), n, m, maps_.data());
    for (int r = 0; r < m; ++r) add(row(x_, r, dim), row(maps_, r, dim), dim);
  }

  // fairseq's rules: never pad; unk at a discount; no eos before the least length (not asked for while any sentence of
  // the batch has a prefix), and nothing else at the limit
  int choose(float* logits, int sentence, int step, const Request& request, float* score) const {
    const float normalizer = score ? log_sum_exp(logits, config_.vocabulary) : 0.f;
    logits[config_.pad] = -INFINITY;
    logits[config_.unk] -= request.unk_penalty;
    int token = config_.eos;
    if (step < request.limits[sentence]) {
      const bool in_prefix = request.prefix && step < request.prefix_length;
      const int forced = in_prefix ? request.prefix[sentence * request.prefix_length + step] : config_.pad;
      if (forced != config_.pad) {
        token = forced;
      } else {
        if (!in_prefix && step < request.min_length) logits[config_.eos] = -INFINITY;
        token = argmax(logits, config_.vocabulary);
      }
    }
    if (score) *score = logits[token] - normalizer;
    return token;
  }
};

}  // namespace tg
