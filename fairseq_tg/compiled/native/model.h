// A Transformer with actors, built from named tensors (fairseq_tg/compiled/layout.py says which) and then only read.
#pragma once

#include <map>
#include <string>

#include "layers.h"
#include "product.h"

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
        static const char* const parts[][4] = {{},
                                               {"gate_and_action"},
                                               {"input", "output"},
                                               {"input", "middle", "output"},
                                               {"input", "gates", "candidate", "output"},
                                               {"output"}};
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

}  // namespace tg
