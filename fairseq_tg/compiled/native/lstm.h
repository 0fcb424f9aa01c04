// An LSTM with attention to the source, as fairseq's models/lstm.py has it; lstm_layout.py says which tensors.
#pragma once

#include <numeric>

#include "actor.h"
#include "alignment.h"

namespace tg {

// n cells at once: their gates (input, forget, candidate, output, n of each) and last states to the next states and to
// what they give
inline void run_cells(const float* gates, const float* last, int n, float* cells, float* out) {
  auto some = [&](int i, int count) __attribute__((always_inline)) {
    auto get = [=](const float* from) __attribute__((always_inline)) {
      if (count == kLanes) return load(from);
      V v{};
      std::memcpy(&v, from, count * sizeof(float));
      return v;
    };
    V in = sigmoid(get(gates + i)), forget = sigmoid(get(gates + n + i));
    V candidate = tanh(get(gates + 2 * n + i)), open = sigmoid(get(gates + 3 * n + i));
    V cell = forget * get(last + i) + in * candidate, given = open * tanh(cell);
    std::memcpy(cells + i, &cell, count * sizeof(float));
    std::memcpy(out + i, &given, count * sizeof(float));
  };
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) some(i, kLanes);
  if (i < n) some(i, n - i);
}

class Lstm : public Family {
 public:
  struct EncoderLayer {
    const Matrix* input;                    // of both directions, one after the other
    std::vector<const Matrix*> directions;  // from state to gates
  };

  explicit Lstm(const Tensors& tensors)
      : source_embedding(tensors.embedding("encoder.embedding")),
        embedding(tensors.embedding("decoder.embedding")),
        output(tensors.matrix("output")),
        actor(tensors, "decoder.attention.actor"),
        residuals(tensors.integer("residuals") != 0) {
    for (int i = 0; i < tensors.integer("layers"); ++i) {
      const std::string at = "." + std::to_string(i) + ".";
      EncoderLayer layer{tensors.matrix("encoder" + at + "input"), {tensors.matrix("encoder" + at + "forward")}};
      if (tensors.has_matrix("encoder" + at + "backward"))
        layer.directions.push_back(tensors.matrix("encoder" + at + "backward"));
      encoder.push_back(layer);
      cells.push_back(tensors.matrix("decoder" + at + "cell"));
      layer_actors.emplace_back(tensors, "decoder" + at + "actor", kGate);
    }
    if (tensors.has_matrix("decoder.start.hidden")) {
      start_hidden = tensors.matrix("decoder.start.hidden");
      start_cell = tensors.matrix("decoder.start.cell");
    }
    if (tensors.has_matrix("decoder.attention.source")) {
      source = tensors.matrix("decoder.attention.source");
      state = tensors.matrix("decoder.attention.state");
    }
    if (tensors.has_matrix("decoder.out")) top = tensors.matrix("decoder.out");
  }

  std::unique_ptr<Decoder> decoder(int threads) const override;

  int layers() const { return static_cast<int>(encoder.size()); }
  int hidden() const { return cells[0]->rows / 4; }
  int encoder_hidden() const { return encoder[0].directions[0]->cols; }
  int units() const { return encoder_hidden() * static_cast<int>(encoder[0].directions.size()); }

  const Embedding *source_embedding, *embedding;
  const Matrix* output;
  std::vector<EncoderLayer> encoder;
  std::vector<const Matrix*> cells;  // of the decoder: from [input, state] to gates
  // These may be null: the encoder's last states are used as they are, there is no attention, no further projection
  const Matrix *start_hidden = nullptr, *start_cell = nullptr, *source = nullptr, *state = nullptr, *top = nullptr;
  Actor actor;
  std::vector<Actor> layer_actors;  // behind the decoder's layers
  bool residuals;
};

class LstmDecoder : public Decoder {
 public:
  LstmDecoder(const Lstm& model, int threads)
      : Decoder(threads), model_(model), acting_([this](auto&&... arguments) { mul(arguments...); }) {}

  void begin(const Sources& sources) override {
    sources_ = sources;
    const int units = model_.units(), hidden = model_.hidden(), layers = model_.layers(), batch = sources.count();
    states_.begin(batch, (1 + 2 * layers) * hidden);
    memory_.begin(batch, model_.actor.memory());
    std::vector<float> last_hidden(static_cast<size_t>(batch) * units), last_cell(last_hidden.size());
    for (int i = 0; i < layers; ++i) {
      encode(i, last_hidden, last_cell);
      start(model_.start_hidden, last_hidden, hidden_at(i));
      start(model_.start_cell, last_cell, cell_at(i));
    }
    if (!model_.source) return;
    const int n = sources.starts.back();
    source_.resize(static_cast<size_t>(n) * 2 * hidden);
    mul(*model_.source, encoded_.data(), units, n, source_.data(), 2 * hidden);
    if (acting_.acts(model_.actor)) {
      const Matrix& of_source = model_.actor.of_source();
      contexts_.resize(static_cast<size_t>(n) * of_source.rows);
      mul(of_source, encoded_.data(), units, n, contexts_.data(), of_source.rows);
    }
    int longest = 0;
    for (int b = 0; b < batch; ++b) longest = std::max(longest, sources.length(b));
    weights_.resize(static_cast<size_t>(kTogether) * (longest + kLanes));
  }

  const float* step(const Rows& rows) override {
    const int m = rows.count(), hidden = model_.hidden(), width = (1 + 2 * model_.layers()) * hidden;
    states_.start_step(m);
    for (int i = 0; i < model_.layers(); ++i) run_layer(i, rows);
    if (model_.source) {
      attend(rows);
    } else {
      for (int r = 0; r < m; ++r) {
        float* now = states_.now(r);
        std::memcpy(now, now + hidden_at(model_.layers() - 1), hidden * sizeof(float));
      }
    }
    grow(top_, static_cast<size_t>(m) * model_.output->cols);
    if (model_.top)
      mul(*model_.top, states_.now(0), width, m, top_.data(), model_.top->rows);
    else
      for (int r = 0; r < m; ++r) std::memcpy(row(top_, r, hidden), states_.now(r), hidden * sizeof(float));
    states_.end_step();
    return top_.data();
  }
  const Matrix& output() const override { return *model_.output; }
  Acting& acting() override { return acting_; }

 private:
  const Lstm& model_;
  Acting acting_;
  Sources sources_;
  // A row of `states_`: what the attention gave, then every layer's output, then every layer's cells
  Memory states_, memory_;
  // Of every source token: what the encoder gives; its key and value; what the actor's first map makes of it
  std::vector<float> encoded_, source_, contexts_;
  std::vector<float> input_, gates_, both_, context_, top_, weights_;

  int hidden_at(int layer) const { return (1 + layer) * model_.hidden(); }
  int cell_at(int layer) const { return (1 + model_.layers() + layer) * model_.hidden(); }

  // One layer of the encoder, in both directions: encoded_ of the layer below to its own. `last_*`: batch x units.
  void encode(int index, std::vector<float>& last_hidden, std::vector<float>& last_cell) {
    const Lstm::EncoderLayer& layer = model_.encoder[index];
    const Sources& sources = sources_;
    const int n = sources.starts.back(), batch = sources.count(), units = model_.units();
    const int hidden = model_.encoder_hidden(), directions = static_cast<int>(layer.directions.size());
    const int inputs = layer.input->cols, all = layer.input->rows;
    if (!index) {
      encoded_.resize(static_cast<size_t>(n) * inputs);
      for (int i = 0; i < n; ++i) model_.source_embedding->look_up(sources.tokens[i], 1.f, row(encoded_, i, inputs));
    }
    input_.resize(static_cast<size_t>(n) * all);
    mul(*layer.input, encoded_.data(), inputs, n, input_.data(), all);
    encoded_.resize(static_cast<size_t>(n) * units);

    // Sentences that are under way are the first ones of this order, at every step
    std::vector<int> order(batch);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return sources.length(a) > sources.length(b); });
    std::vector<float> state(static_cast<size_t>(batch) * hidden), cell(state.size());
    grow(gates_, static_cast<size_t>(batch) * 4 * hidden);
    for (int d = 0; d < directions; ++d) {
      std::fill(cell.begin(), cell.end(), 0.f);
      int active = batch;
      for (int t = 0; t < sources.length(order[0]); ++t) {
        while (sources.length(order[active - 1]) <= t) --active;
        if (t) mul(*layer.directions[d], state.data(), hidden, active, gates_.data(), 4 * hidden);
        for (int r = 0; r < active; ++r) {
          const int b = order[r], at = d ? sources.starts[b + 1] - 1 - t : sources.starts[b] + t;
          float* gates = row(input_, at, all) + d * 4 * hidden;
          if (t) add(gates, row(gates_, r, 4 * hidden), 4 * hidden);
          run_cells(gates, row(cell, r, hidden), hidden, row(cell, r, hidden), row(state, r, hidden));
          std::memcpy(row(encoded_, at, units) + d * hidden, row(state, r, hidden), hidden * sizeof(float));
        }
      }
      for (int r = 0; r < batch; ++r) {
        std::memcpy(row(last_hidden, order[r], units) + d * hidden, row(state, r, hidden), hidden * sizeof(float));
        std::memcpy(row(last_cell, order[r], units) + d * hidden, row(cell, r, hidden), hidden * sizeof(float));
      }
    }
  }

  // The encoder's last states become the decoder's first
  void start(const Matrix* projection, const std::vector<float>& from, int at) {
    const int batch = sources_.count(), hidden = model_.hidden(), units = model_.units();
    const int width = (1 + 2 * model_.layers()) * hidden;
    if (projection) return mul(*projection, from.data(), units, batch, states_.last(0) + at, width);
    for (int b = 0; b < batch; ++b) std::memcpy(states_.last(b) + at, row(from, b, units), hidden * sizeof(float));
  }

  void run_layer(int index, const Rows& rows) {
    const Matrix& cell = *model_.cells[index];
    const int m = rows.count(), hidden = model_.hidden(), width = cell.cols, inputs = width - hidden;
    grow(input_, static_cast<size_t>(m) * width);
    grow(gates_, static_cast<size_t>(m) * cell.rows);
    for (int r = 0; r < m; ++r) {
      float* x = row(input_, r, width);
      const float* last = states_.last(rows.parent[r]);
      if (!index) {
        model_.embedding->look_up(rows.token[r], 1.f, x);
        std::memcpy(x + inputs - hidden, last, hidden * sizeof(float));
      } else {
        std::memcpy(x, states_.now(r) + hidden_at(index - 1), hidden * sizeof(float));
        if (model_.residuals) add(x, last + hidden_at(index - 1), hidden);
      }
      std::memcpy(x + inputs, last + hidden_at(index), hidden * sizeof(float));
    }
    mul(cell, input_.data(), width, m, gates_.data(), cell.rows);
    for (int r = 0; r < m; ++r) {
      float* now = states_.now(r);
      run_cells(row(gates_, r, cell.rows), states_.last(rows.parent[r]) + cell_at(index), hidden, now + cell_at(index),
                now + hidden_at(index));
    }
    const Actor& actor = model_.layer_actors[index];
    if (!actor) return;
    grow(both_, static_cast<size_t>(m) * width);
    for (int r = 0; r < m; ++r) {
      float* h = row(both_, r, width);
      std::memcpy(h, states_.now(r) + hidden_at(index), hidden * sizeof(float));
      std::memcpy(h + hidden, row(input_, r, width), inputs * sizeof(float));
    }
    acting_.act(actor, rows, both_.data(), width, states_.now(0) + hidden_at(index), (1 + 2 * model_.layers()) * hidden,
                memory_);
  }

  // tanh(W [e, h]), with what the source is to e and to h worked out in `begin`; and the action after it
  void attend(const Rows& rows) {
    const int m = rows.count(), hidden = model_.hidden(), width = (1 + 2 * model_.layers()) * hidden;
    const int at = hidden_at(model_.layers() - 1),
              acting = acting_.acts(model_.actor) ? model_.actor.of_source().rows : 0;
    context_.assign(static_cast<size_t>(m) * acting, 0.f);
    mul(*model_.state, states_.now(0) + at, width, m, states_.now(0), width);
    for (int r = 0, count; r < m; r += count) {
      count = neighbours(rows.sentence, r);
      const int start = sources_.starts[rows.sentence[r]], n = sources_.length(rows.sentence[r]);
      const int room = static_cast<int>(weights_.size()) / kTogether;
      const float* keys = row(source_, start, 2 * hidden);
      for (int i = 0; i < count; ++i) {
        float* weights = row(weights_, i, room);
        compare(states_.now(r + i) + at, keys, 2 * hidden, n, hidden, weights);
        softmax(weights, n);
        if (acting_.trace) acting_.trace->attended(weights, n);
      }
      mix(count, weights_.data(), room, keys + hidden, 2 * hidden, n, hidden, states_.now(r), width);
      for (int i = 0; i < count; ++i) map(states_.now(r + i), hidden, [](V v) { return tanh(v); });
      if (acting)
        mix(count, weights_.data(), room, row(contexts_, start, acting), acting, n, acting, row(context_, r, acting),
            acting);
    }
    if (acting)
      acting_.act(model_.actor, rows, states_.now(0) + at, width, states_.now(0), width, memory_, context_.data());
  }
};

inline std::unique_ptr<Decoder> Lstm::decoder(int threads) const {
  return std::make_unique<LstmDecoder>(*this, threads);
}

}  // namespace tg
