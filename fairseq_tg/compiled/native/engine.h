// Greedy decoding of a Transformer with actors: the encoder, the decoder's step and the loop around it.
//
// A model is built from named tensors (fairseq_tg/compiled/layout.py says which), then only read: any number of threads
// may translate with it at once. Sentences of a batch are kept one after another, without padding; in the decoder a
// sentence keeps its place in the caches until it is finished, and only unfinished ones take part in a step.
#include <map>
#include <string>
#include <type_traits>

#include "kernels.h"

namespace tg {

enum Activation { kRelu = 0, kGelu = 1, kTanh = 2, kLinear = 3 };
enum ActorKind { kNone = 0, kGate = 1, kFeedForward = 2, kFeedForward2 = 3, kRecurrent = 4, kOneLayer = 5 };

struct Config {  // as in engine.py
  int32_t vocabulary, source_vocabulary, dim, encoder_dim;
  int32_t encoder_layers, decoder_layers, encoder_heads, decoder_heads;
  int32_t encoder_pre_norm, decoder_pre_norm, activation;
  int32_t pad, eos, unk, actor, actor_hidden;
  float encoder_scale, decoder_scale;  // of embeddings
};

struct Embedding {
  const float* table = nullptr;
  const int8_t* quantized = nullptr;
  std::vector<float> scales;
  int dim = 0;
  void look_up(int token, float scale, float* y) const {
    const size_t at = static_cast<size_t>(token) * dim;
    for (int i = 0; i < dim; ++i) y[i] = table ? table[at + i] * scale : quantized[at + i] * (scales[token] * scale);
  }
};

struct Maps {  // several linear maps of one input, full or factored; see fairseq_tg/actors.py
  const Matrix* full = nullptr;
  const Matrix* down = nullptr;
  std::vector<const Matrix*> up;
  int outputs() const {
    if (full) return full->rows;
    int n = 0;
    for (auto* m : up) n += m->rows;
    return n;
  }
};

struct Layer {
  const Matrix *qkv, *out, *fc1, *fc2;
  const Norm *self_norm, *final_norm;
  // of a decoder only
  const Matrix *cross_q = nullptr, *cross_kv = nullptr, *cross_out = nullptr;
  const Norm* cross_norm = nullptr;
  int actor = kNone;
  std::vector<Maps> maps;
};

struct Model {
  Config config;
  std::map<std::string, Matrix> matrices;
  std::map<std::string, Norm> norms;
  std::map<std::string, Embedding> embeddings;
  std::map<std::string, const float*> tables;
  std::vector<Layer> encoder, decoder;
  std::string missing;

  const Matrix* matrix(const std::string& name) {
    auto it = matrices.find(name);
    if (it == matrices.end()) missing = name;
    return it == matrices.end() ? nullptr : &it->second;
  }
  const Norm* norm(const std::string& name) {
    auto it = norms.find(name);
    if (it == norms.end()) missing = name;
    return it == norms.end() ? nullptr : &it->second;
  }
  const Norm* optional_norm(const char* name) const {
    auto it = norms.find(name);
    return it == norms.end() ? nullptr : &it->second;
  }
  Maps maps(const std::string& name) {
    Maps m;
    if (matrices.count(name + ".down")) {
      m.down = matrix(name + ".down");
      for (int i = 0; matrices.count(name + ".up." + std::to_string(i)); ++i)
        m.up.push_back(matrix(name + ".up." + std::to_string(i)));
    } else {
      m.full = matrix(name + ".full");
    }
    return m;
  }

  void connect() {
    for (int i = 0; i < config.encoder_layers + config.decoder_layers; ++i) {
      const bool is_decoder = i >= config.encoder_layers;
      const std::string at =
          is_decoder ? "decoder." + std::to_string(i - config.encoder_layers) : "encoder." + std::to_string(i);
      Layer layer{};
      layer.qkv = matrix(at + ".self.qkv");
      layer.out = matrix(at + ".self.out");
      layer.self_norm = norm(at + ".self.norm");
      layer.fc1 = matrix(at + ".fc1");
      layer.fc2 = matrix(at + ".fc2");
      layer.final_norm = norm(at + ".norm");
      if (is_decoder) {
        layer.cross_q = matrix(at + ".cross.q");
        layer.cross_kv = matrix(at + ".cross.kv");
        layer.cross_out = matrix(at + ".cross.out");
        layer.cross_norm = norm(at + ".cross.norm");
        static const char* const parts[][4] = {{}, {"gate_and_action"}, {"input", "output"}, {"input", "middle", "output"},
                                               {"input", "gates", "candidate", "output"}, {"output"}};
        bool has = false;  // --actor-layers last leaves layers without
        for (auto& item : matrices) has = has || item.first.rfind(at + ".actor.", 0) == 0;
        layer.actor = has ? config.actor : kNone;
        for (int j = 0; j < 4 && has && parts[config.actor][j]; ++j)
          layer.maps.push_back(maps(at + ".actor." + parts[config.actor][j]));
      }
      (is_decoder ? decoder : encoder).push_back(layer);
    }
    matrix("output");
    for (const char* name : {"encoder.embedding", "decoder.embedding"})
      if (!embeddings.count(name)) missing = name;
  }
};

// Row i of rows that are `ld` floats apart
template <class Rows>
inline auto row(Rows& rows, size_t i, size_t ld) { return &rows[i * ld]; }

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

    // Keys and values of the source, once; those of the target, as they come. Pages never written cost nothing.
    const int source = starts[batch], limit = *std::max_element(request.limits, request.limits + batch) + 1;
    std::vector<Aligned<float>> cross, cache;
    for (auto& layer : model_.decoder) {
      cross.emplace_back(static_cast<size_t>(source) * 2 * dim);
      mul(*layer.cross_kv, states_.data(), config_.encoder_dim, source, cross.back().data(), 2 * dim);
      cache.emplace_back(static_cast<size_t>(batch) * limit * 2 * dim);
    }
    std::vector<std::vector<float>> memory(model_.decoder.size());
    for (size_t i = 0; i < memory.size(); ++i)
      if (model_.decoder[i].actor == kRecurrent) memory[i].assign(static_cast<size_t>(batch) * config_.actor_hidden, 0.f);

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
  std::vector<float> states_;                                      // what the encoder gives
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
      case kRelu: map(x, n, [](V v) { return v > splat(0.f) ? v : splat(0.f); }); break;
      case kTanh: map(x, n, [](V v) { return tanh(v); }); break;
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
    activate(hidden_.data(), m * wide);
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
          attend(row(qkv_, i, 3 * dim), keys, keys + dim, 3 * dim, starts[b + 1] - starts[b], heads,
                 dim / heads, row(normal, i, dim), weights_.data());
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

    // Self attention. `both` holds [h, e] of the actor, so that neither is copied: h in the first half, e in the second.
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
      map(maps_.data(), m * width, [](V v) { return sigmoid(v); });
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

extern "C" {

// Whether this machine can run the library built for AVX2 (asked of the one that runs anywhere)
int tg_has_avx2() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 0;
#endif
}

tg::Model* tg_new(const tg::Config* config) {
  auto* model = new tg::Model();
  model->config = *config;
  return model;
}

void tg_free(tg::Model* model) { delete model; }

// Weights of a linear map: packed, so the caller's memory is free afterwards. `scales` is null for float32.
void tg_matrix(tg::Model* model, const char* name, const void* data, const float* scales, const float* bias, int rows,
               int cols) {
  auto matrix = scales ? tg::Matrix::pack(static_cast<const int8_t*>(data), scales, rows, cols)
                       : tg::Matrix::pack(static_cast<const float*>(data), rows, cols);
  if (bias) std::copy(bias, bias + rows, matrix.bias.begin());
  model->matrices[name] = std::move(matrix);
}

// Embeddings and positions stay where they are: the caller keeps the memory.
void tg_embedding(tg::Model* model, const char* name, const void* data, const float* scales, int rows, int cols) {
  tg::Embedding& e = model->embeddings[name];
  e.dim = cols;
  if (scales) {
    e.quantized = static_cast<const int8_t*>(data);
    e.scales.assign(scales, scales + rows);
  } else {
    e.table = static_cast<const float*>(data);
  }
}

void tg_positions(tg::Model* model, const char* name, const float* data) { model->tables[name] = data; }

void tg_norm(tg::Model* model, const char* name, const float* weight, const float* bias, int size) {
  model->norms[name] = tg::Norm{{weight, weight + size}, {bias, bias + size}};
}

// The name of a tensor that is not there, or null when the model is complete
const char* tg_connect(tg::Model* model) {
  model->connect();
  return model->missing.empty() ? nullptr : model->missing.c_str();
}

// 0, or 1 when there is not enough memory
int tg_translate(const tg::Model* model, const tg::Call::Request* request, int threads, int32_t* out, int stride,
                 int32_t* out_lengths, float* scores) {
  try {
    tg::Call(*model, threads).translate(*request, out, stride, out_lengths, scores);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}
}
