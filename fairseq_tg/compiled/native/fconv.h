// A ConvS2S, as fairseq's models/fconv.py has it; fconv_layout.py says which tensors.
#pragma once

#include "actor.h"
#include "alignment.h"

namespace tg {

constexpr float kHalf = 0.70710678f;  // sqrt(1/2) keeps the variance of a sum of two

class Fconv : public Family {
 public:
  struct Layer {
    const Matrix* conv;      // of a window of inputs, one after another, to twice the outputs: values, gates
    const Matrix* residual;  // may be null
    int width, back;         // of the window; how many layers back the residual comes from, 0 for none
    // of a decoder only, null where there is no attention
    const Matrix *keys = nullptr, *values = nullptr;
    Actor actor, conv_actor;
    int inputs() const { return conv->cols / width; }
    int outputs() const { return conv->rows / 2; }
  };

  explicit Fconv(const Tensors& tensors)
      : source_embedding(tensors.embedding("encoder.embedding")),
        embedding(tensors.embedding("decoder.embedding")),
        source_positions(tensors.table_or_null("encoder.positions")),
        positions(tensors.table_or_null("decoder.positions")),
        encoder_in(tensors.matrix("encoder.in")),
        encoder_out(tensors.matrix("encoder.out")),
        decoder_in(tensors.matrix("decoder.in")),
        decoder_out(tensors.matrix("decoder.out")),
        output(tensors.matrix("output")),
        encoder(layers(tensors, "encoder")),
        decoders(layers(tensors, "decoder")) {}

  std::unique_ptr<Decoder> decoder(int threads) const override;

  const Embedding *source_embedding, *embedding;
  const float *source_positions, *positions;
  const Matrix *encoder_in, *encoder_out, *decoder_in, *decoder_out, *output;
  std::vector<Layer> encoder, decoders;

 private:
  static std::vector<Layer> layers(const Tensors& tensors, const std::string& side) {
    std::vector<Layer> found;
    for (int i = 0; tensors.has_matrix(side + "." + std::to_string(i) + ".conv"); ++i) {
      const std::string at = side + "." + std::to_string(i);
      Layer layer{};
      layer.conv = tensors.matrix(at + ".conv");
      layer.width = tensors.integer(at + ".width");
      layer.back = tensors.integer(at + ".back");
      if (tensors.has_matrix(at + ".residual")) layer.residual = tensors.matrix(at + ".residual");
      if (tensors.has_matrix(at + ".attention.keys")) {
        layer.keys = tensors.matrix(at + ".attention.keys");
        layer.values = tensors.matrix(at + ".attention.values");
        layer.actor = Actor(tensors, at + ".actor");
      }
      layer.conv_actor = Actor(tensors, at + ".conv.actor", kGate);
      found.push_back(std::move(layer));
    }
    return found;
  }
};

class FconvDecoder : public Decoder {
 public:
  FconvDecoder(const Fconv& model, int threads)
      : Decoder(threads),
        model_(model),
        acting_([this](auto&&... arguments) { mul(arguments...); }),
        inputs_(model.decoders.size()),
        keys_(model.decoders.size()),
        values_(model.decoders.size()),
        acting_contexts_(model.decoders.size()),
        memories_(model.decoders.size()) {}

  void begin(const Sources& sources) override {
    sources_ = sources;
    const int n = sources.starts.back(), dim = model_.embedding->dim;
    encode();
    longest_ = 0;
    for (int b = 0; b < sources.count(); ++b) longest_ = std::max(longest_, sources.length(b));
    weights_.resize(static_cast<size_t>(kTogether) * (longest_ + kLanes));
    for (size_t i = 0; i < model_.decoders.size(); ++i) {
      const Fconv::Layer& layer = model_.decoders[i];
      inputs_[i].resize(layer.width);
      if (!layer.keys) continue;
      const int channels = layer.outputs();
      keys_[i].resize(static_cast<size_t>(n) * (channels + 1));
      mul(*layer.keys, encoded_.data(), dim, n, keys_[i].data(), channels + 1);
      values_[i].resize(static_cast<size_t>(n) * channels);
      mul(*layer.values, contexts_.data(), dim, n, values_[i].data(), channels);
      memories_[i].begin(sources.count(), layer.actor.memory());
      if (!acting_.acts(layer.actor)) continue;
      const Matrix& of_source = layer.actor.of_source();
      acting_contexts_[i].resize(static_cast<size_t>(n) * of_source.rows);
      mul(of_source, contexts_.data(), dim, n, acting_contexts_[i].data(), of_source.rows);
    }
  }

  const float* step(const Rows& rows) override {
    const int m = rows.count(), dim = model_.embedding->dim;
    ancestors_.follow(rows);
    grow(embedded_, static_cast<size_t>(m) * dim);
    grow(compared_, static_cast<size_t>(m) * longest_);
    for (int r = 0; r < m; ++r) {  // a query is (W x + b + embedding) sqrt(1/2), and the embedding that of every layer
      float* x = row(embedded_, r, dim);
      model_.embedding->look_up(rows.token[r], 1.f, x);
      if (model_.positions) add(x, model_.positions + static_cast<size_t>(rows.step) * dim, dim);
      const int sentence = rows.sentence[r];
      compare(x, row(encoded_, sources_.starts[sentence], dim), dim, sources_.length(sentence), dim,
              row(compared_, r, longest_));
    }
    float* state = input(0, rows.step, m);
    mul(*model_.decoder_in, embedded_.data(), dim, m, state, model_.decoder_in->rows);
    const int layers = static_cast<int>(model_.decoders.size());
    for (int i = 0; i < layers; ++i) {
      const Fconv::Layer& layer = model_.decoders[i];
      const int channels = layer.outputs();
      convolve(i, rows);
      if (i + 1 < layers) {
        state = input(i + 1, rows.step, m);
      } else {
        grow(top_, static_cast<size_t>(m) * channels);
        state = top_.data();
      }
      if (layer.keys)
        attend(i, rows, state);
      else
        std::memcpy(state, glu_.data(), static_cast<size_t>(m) * channels * sizeof(float));
      if (layer.back) {
        const int from = i + 1 - layer.back;
        add_residual(layer, input(from, rows.step, m), model_.decoders[from].inputs(), m, state);
      }
    }
    grow(out_, static_cast<size_t>(m) * model_.decoder_out->rows);
    mul(*model_.decoder_out, state, model_.decoder_out->cols, m, out_.data(), model_.decoder_out->rows);
    return out_.data();
  }
  const Matrix& output() const override { return *model_.output; }
  Acting& acting() override { return acting_; }

 private:
  const Fconv& model_;
  Acting acting_;
  Sources sources_;
  Ancestors ancestors_;
  int longest_ = 0;  // of the sources
  // Of every source token: what the encoder gives, what a context is made of; of every attention its keys and values,
  // and what its actor's first map makes of a context
  std::vector<float> encoded_, contexts_;
  std::vector<std::vector<std::vector<float>>> inputs_;  // of every convolution at its last steps, by step modulo width
  std::vector<std::vector<float>> keys_, values_, acting_contexts_;
  std::vector<Memory> memories_;  // of recurrent actors
  std::vector<float> embedded_, compared_, window_, gates_, glu_, residual_, both_, context_, top_, out_, weights_;

  // The inputs of a convolution at a step: m rows
  float* input(int layer, int step, int m) {
    std::vector<float>& at = inputs_[layer][step % model_.decoders[layer].width];
    grow(at, static_cast<size_t>(m) * model_.decoders[layer].inputs());
    return at.data();
  }

  // m windows to m rows of glu_: values by the logistic function of gates
  void take_windows(const Fconv::Layer& layer, int m, const Rows* rows = nullptr) {
    const int channels = layer.outputs();
    grow(gates_, static_cast<size_t>(m) * 2 * channels);
    grow(glu_, static_cast<size_t>(m) * channels);
    mul(*layer.conv, window_.data(), layer.conv->cols, m, gates_.data(), 2 * channels);
    if (rows && layer.conv_actor) {  // which sees the convolution's output and its last input
      const int inputs = layer.inputs(), both = 2 * channels + inputs;
      grow(both_, static_cast<size_t>(m) * both);
      for (int r = 0; r < m; ++r) {
        float* h = row(both_, r, both);
        std::memcpy(h, row(gates_, r, 2 * channels), 2 * channels * sizeof(float));
        std::memcpy(h + 2 * channels, row(window_, r, layer.conv->cols) + layer.conv->cols - inputs,
                    inputs * sizeof(float));
      }
      Memory none;
      acting_.act(layer.conv_actor, *rows, both_.data(), both, gates_.data(), 2 * channels, none);
    }
    for (int r = 0; r < m; ++r) {
      float* x = row(gates_, r, 2 * channels);
      map(x, x + channels, channels, [](V value, V gate) { return value * sigmoid(gate); });
      std::memcpy(row(glu_, r, channels), x, channels * sizeof(float));
    }
  }

  // x = (x + what comes from the layer `from`) sqrt(1/2)
  void add_residual(const Fconv::Layer& layer, const float* from, int ld, int m, float* x) {
    const int channels = layer.outputs();
    if (layer.residual) {
      grow(residual_, static_cast<size_t>(m) * channels);
      mul(*layer.residual, from, ld, m, residual_.data(), channels);
      from = residual_.data();
    }
    for (int r = 0; r < m; ++r)
      map(x + static_cast<size_t>(r) * channels, from + static_cast<size_t>(r) * channels, channels,
          [](V a, V b) { return (a + b) * splat(kHalf); });
  }

  void encode() {
    const Sources& sources = sources_;
    const int n = sources.starts.back(), dim = model_.embedding->dim;
    std::vector<std::vector<float>> states(model_.encoder.size() + 1);  // the input of every convolution, and the last
    contexts_.resize(static_cast<size_t>(n) * dim);
    for (int b = 0; b < sources.count(); ++b)
      for (int i = 0; i < sources.length(b); ++i) {
        float* x = row(contexts_, sources.starts[b] + i, dim);
        model_.source_embedding->look_up(sources.tokens[sources.starts[b] + i], 1.f, x);
        add(x, model_.source_positions + static_cast<size_t>(i) * dim, dim);
      }
    states[0].resize(static_cast<size_t>(n) * model_.encoder_in->rows);
    mul(*model_.encoder_in, contexts_.data(), dim, n, states[0].data(), model_.encoder_in->rows);
    for (size_t i = 0; i < model_.encoder.size(); ++i) {
      const Fconv::Layer& layer = model_.encoder[i];
      const int inputs = layer.inputs(), before = (layer.width - 1) / 2;
      window_.assign(static_cast<size_t>(n) * layer.conv->cols, 0.f);
      for (int b = 0; b < sources.count(); ++b)
        for (int at = sources.starts[b]; at < sources.starts[b + 1]; ++at) {
          const int first = std::max(at - before, sources.starts[b]);
          const int end = std::min(at - before + layer.width, sources.starts[b + 1]);
          if (first < end)
            std::memcpy(row(window_, at, layer.conv->cols) + static_cast<size_t>(first - at + before) * inputs,
                        row(states[i], first, inputs), static_cast<size_t>(end - first) * inputs * sizeof(float));
        }
      take_windows(layer, n);
      states[i + 1].assign(glu_.begin(), glu_.begin() + static_cast<size_t>(n) * layer.outputs());
      if (layer.back) {
        const int from = static_cast<int>(i) + 1 - layer.back;
        add_residual(layer, states[from].data(), model_.encoder[from].inputs(), n, states[i + 1].data());
      }
    }
    encoded_.resize(static_cast<size_t>(n) * dim);
    mul(*model_.encoder_out, states.back().data(), model_.encoder_out->cols, n, encoded_.data(), dim);
    // A context is scaled by the square root of the sentence's length; what the encoder gives is by that of 1/2 already
    for (int b = 0; b < sources.count(); ++b) {
      const float scale = std::sqrt(static_cast<float>(sources.length(b)));
      for (int at = sources.starts[b]; at < sources.starts[b + 1]; ++at)
        map(row(contexts_, at, dim), row(encoded_, at, dim), dim,
            [=](V embedding, V x) { return (embedding * splat(kHalf) + x) * splat(scale); });
    }
  }

  // A step of a convolution: what a row's ancestors were given, and what it is given now
  void convolve(int index, const Rows& rows) {
    const Fconv::Layer& layer = model_.decoders[index];
    const int m = rows.count(), inputs = layer.inputs(), before = layer.width - 1;
    grow(window_, static_cast<size_t>(m) * layer.conv->cols);
    for (int r = 0; r < m; ++r) {
      float* window = row(window_, r, layer.conv->cols);
      const int* ancestors = ancestors_.of(r);
      for (int k = 0; k < layer.width; ++k, window += inputs) {
        const int step = rows.step - before + k;
        if (step < 0)
          std::fill(window, window + inputs, 0.f);
        else
          std::memcpy(window, row(inputs_[index][step % layer.width], ancestors[step], inputs), inputs * sizeof(float));
      }
    }
    take_windows(layer, m, &rows);
  }

  // glu_ to state, both m rows: x sqrt(1/2) and what the source answers it; and the action after it
  void attend(int index, const Rows& rows, float* state) {
    const Fconv::Layer& layer = model_.decoders[index];
    const int m = rows.count(), channels = layer.outputs();
    const int acting = acting_.acts(layer.actor) ? layer.actor.of_source().rows : 0;
    context_.assign(static_cast<size_t>(m) * acting, 0.f);
    for (int r = 0, count; r < m; r += count) {
      count = neighbours(rows.sentence, r);
      const int start = sources_.starts[rows.sentence[r]], n = sources_.length(rows.sentence[r]);
      const int room = static_cast<int>(weights_.size()) / kTogether;
      const float* keys = row(keys_[index], start, channels + 1);
      float* out = state + static_cast<size_t>(r) * channels;
      for (int i = 0; i < count; ++i) {
        const float *x = row(glu_, r + i, channels), *embedding = row(compared_, r + i, longest_);
        float *weights = row(weights_, i, room), *to = out + static_cast<size_t>(i) * channels;
        compare(x, keys, channels + 1, n, channels, weights);
        for (int t = 0; t < n; ++t) weights[t] += embedding[t] + keys[static_cast<size_t>(t + 1) * (channels + 1) - 1];
        softmax(weights, n);
        if (acting_.trace) acting_.trace->attended(weights, n);
        std::memcpy(to, x, channels * sizeof(float));
        map(to, channels, [](V v) { return v * splat(kHalf); });
      }
      mix(count, weights_.data(), room, row(values_[index], start, channels), channels, n, channels, out, channels);
      if (acting)
        mix(count, weights_.data(), room, row(acting_contexts_[index], start, acting), acting, n, acting,
            row(context_, r, acting), acting);
    }
    if (acting)
      acting_.act(layer.actor, rows, glu_.data(), channels, state, channels, memories_[index], context_.data());
  }
};

inline std::unique_ptr<Decoder> Fconv::decoder(int threads) const {
  return std::make_unique<FconvDecoder>(*this, threads);
}

}  // namespace tg
