// A Transformer of made-up weights, float32 and int8, greedy and with a beam, through what Python calls. It prints what
// is found, to be compared between machines: tests/unit/test_machines.py runs it under an emulator of another one.
#include <cstdio>

#include "../../fairseq_tg/compiled/native/engine.h"

namespace {

constexpr int kWords = 37, kDim = 48, kWide = 70, kLayers = 2, kHeads = 2;

struct Dice {
  uint32_t state = 7;
  float operator()() {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / (1 << 23) - 1.f;
  }
};

struct Maker {
  tg::Model* model;
  bool int8;
  Dice dice;

  void matrix(const std::string& name, int rows, int cols) {
    std::vector<float> w(static_cast<size_t>(rows) * cols), bias(rows), scales(rows);
    std::vector<int8_t> q(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] = dice() * 1.7f / std::sqrt(static_cast<float>(cols));
      q[i] = static_cast<int8_t>(dice() * 127.f);
    }
    for (auto& b : bias) b = dice() * 0.1f;
    for (auto& s : scales) s = 1.7f / (127.f * std::sqrt(static_cast<float>(cols)));
    const void* data = int8 ? static_cast<const void*>(q.data()) : w.data();
    tg_matrix(model, name.c_str(), data, int8 ? scales.data() : nullptr, bias.data(), rows, cols);
  }
  void norm(const std::string& name) {
    std::vector<float> weight(kDim, 1.f), bias(kDim, 0.f);
    tg_norm(model, name.c_str(), weight.data(), bias.data(), kDim);
  }
};

}  // namespace

int main() {
  std::vector<float> table(static_cast<size_t>(kWords) * kDim);
  Dice dice;
  for (auto& v : table) v = dice();
  for (const bool int8 : {false, true}) {
    Maker make{tg_new(nullptr), int8, {}};
    const std::pair<const char*, double> numbers[] = {
        {"family", 0},
        {"vocabulary", kWords},
        {"dim", kDim},
        {"encoder_dim", kDim},
        {"encoder_heads", 2},
        {"decoder_heads", 2},
        {"encoder_layers", 2},
        {"decoder_layers", 2},
        {"encoder_pre_norm", 0},
        {"decoder_pre_norm", 0},
        {"activation", 0},
        {"actor", 1},
        {"pad", 1},
        {"eos", 2},
        {"unk", 3},
        {"encoder_scale", 1},
        {"decoder_scale", 1},
    };
    for (auto& item : numbers) tg_number(make.model, item.first, item.second);
    for (const std::string side : {"encoder", "decoder"}) {
      tg_embedding(make.model, (side + ".embedding").c_str(), table.data(), nullptr, kWords, kDim);
      for (int i = 0; i < kLayers; ++i) {
        const std::string at = side + "." + std::to_string(i);
        make.matrix(at + ".self.qkv", 3 * kDim, kDim);
        make.matrix(at + ".self.out", kDim, kDim);
        make.matrix(at + ".fc1", kWide, kDim);
        make.matrix(at + ".fc2", kDim, kWide);
        make.norm(at + ".self.norm");
        make.norm(at + ".norm");
        if (side == "encoder") continue;
        make.matrix(at + ".cross.q", kDim, kDim);
        make.matrix(at + ".cross.kv", 2 * kDim, kDim);
        make.matrix(at + ".cross.out", kDim, kDim);
        make.norm(at + ".cross.norm");
        make.matrix(at + ".actor.gate_and_action.full", 2 * kDim, 2 * kDim);
      }
    }
    make.matrix("output", kWords, kDim);
    if (const char* missing = tg_connect(make.model)) return std::printf("no %s\n", missing), 1;
    const int32_t tokens[] = {5, 9, 17, 30, 11, 2, 8, 2, 4, 4, 4, 2}, lengths[] = {6, 2, 4}, limits[] = {9, 9, 9};
    std::vector<int32_t> starts(1), brought;  // a shortlist: every source token brings five tokens
    for (int i = 0; i < 5 * kWords; ++i) brought.push_back(i * 7 % kWords);
    for (int word = 1; word <= kWords; ++word) starts.push_back(5 * word);
    if (tg_shortlist(make.model, starts.data(), kWords, brought.data())) return 1;
    for (const auto& [beam, all] : {std::pair(1, 1), std::pair(5, 1), std::pair(1, 0), std::pair(5, 0)}) {
      tg::Request request{};
      request.all = all;
      request.tokens = tokens;
      request.lengths = lengths;
      request.limits = limits;
      request.batch = 3;
      request.min_length = 1;
      request.beam = request.nbest = beam;
      request.normalize = 1;
      request.first = request.end = 2;
      request.length_penalty = 1.f;
      std::vector<int32_t> found(3 * beam * 10), found_lengths(3 * beam);
      std::vector<float> scores(3 * beam), positional(found.size());
      const tg::Results results{found.data(), found_lengths.data(), scores.data(), positional.data(), 10};
      if (tg_search(make.model, &request, 1, &results)) return 1;
      for (int i = 0; i < 3 * beam; ++i) {
        std::printf("%s %d%s %.3f", int8 ? "int8" : "float32", beam, all ? "" : "short", scores[i]);
        for (int t = 0; t < found_lengths[i]; ++t) std::printf(" %d", found[i * 10 + t]);
        std::printf("\n");
      }
    }
    tg_free(make.model);
  }
}
