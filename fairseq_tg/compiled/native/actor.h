// An actor at one place of a decoder: x += a(h, e). The equations are those of fairseq_tg/actors.py.
#pragma once

#include <functional>

#include "decoder.h"
#include "trace.h"

namespace tg {

enum ActorKind { kNone = 0, kGate = 1, kFeedForward = 2, kFeedForward2 = 3, kRecurrent = 4, kOneLayer = 5 };

struct Maps {  // several linear maps of one input, full or factored
  const Matrix* full = nullptr;
  const Matrix* down = nullptr;
  std::vector<const Matrix*> up;

  // Of one that is divided (layout.py): what the other part makes of a source token is part of a context
  const Matrix* of_source = nullptr;

  Maps(const Tensors& tensors, const std::string& name) {
    const auto first = [&](const std::string& part) {
      if (!tensors.has_matrix(part + ".state")) return tensors.matrix(part);
      of_source = tensors.matrix(part + ".context");
      return tensors.matrix(part + ".state");
    };
    if (!tensors.has_matrix(name + ".down") && !tensors.has_matrix(name + ".down.state")) {
      full = first(name + ".full");
      return;
    }
    down = first(name + ".down");
    for (int i = 0; tensors.has_matrix(name + ".up." + std::to_string(i)); ++i)
      up.push_back(tensors.matrix(name + ".up." + std::to_string(i)));
  }
  int outputs() const {
    if (full) return full->rows;
    int n = 0;
    for (auto* m : up) n += m->rows;
    return n;
  }
};

struct Actor {
  int kind = kNone;
  std::vector<Maps> maps;
  int width = 0;  // of the action, and of the state h

  Actor() = default;
  // The actor whose matrices' names begin so, of the model's kind or another; none if there are none
  Actor(const Tensors& tensors, const std::string& at, int of_kind = kNone) {
    static const char* const parts[][4] = {{},
                                           {"gate_and_action"},
                                           {"input", "output"},
                                           {"input", "middle", "output"},
                                           {"input", "gates", "candidate", "output"},
                                           {"output"}};
    const std::string prefix = at + ".";
    auto first = tensors.matrices.lower_bound(prefix);
    if (first == tensors.matrices.end() || first->first.compare(0, prefix.size(), prefix) != 0) return;
    kind = of_kind != kNone ? of_kind : tensors.integer("actor");
    for (int i = 0; i < 4 && parts[kind][i]; ++i) maps.emplace_back(tensors, prefix + parts[kind][i]);
    width = kind == kNone ? 0 : kind == kGate ? maps[0].outputs() / 2 : maps.back().outputs();
  }
  explicit operator bool() const { return kind != kNone; }
  // From a source token to its part of a context, if e is a mean of these
  const Matrix& of_source() const { return *maps[0].of_source; }
  // How much it remembers of a row
  int memory() const { return kind == kRecurrent ? maps[2].outputs() : 0; }
};

// Room to act in, and how to take products; one for each decoder
class Acting {
 public:
  using Product = std::function<void(const Matrix&, const float*, int, int, float*, int)>;
  explicit Acting(Product product) : mul_(std::move(product)) {}

  bool enabled = true;     // else the model is its base
  Trace* trace = nullptr;  // of a batch of one row

  bool acts(const Actor& actor) const { return enabled && actor; }

  // For every row r: x[r] += the action on both[r] = [h, e], or, of one that is divided, on h, with what its first map
  // makes of e in context[r]. `memory` is that of a recurrent actor.
  void act(const Actor& actor, const Rows& rows, const float* both, int ld_both, float* x, int ldx, Memory& memory,
           const float* context = nullptr) {
    if (!enabled) return;
    if (trace) before_.assign(x, x + actor.width);
    add_action(actor, rows, both, ld_both, x, ldx, memory, context);
    if (trace) trace->acted(both, before_.data(), x, actor.width);
  }

 private:
  Product mul_;
  std::vector<float> maps_, gates_, factors_, state_, reset_, candidate_, before_;

  void add_action(const Actor& actor, const Rows& rows, const float* both, int ld_both, float* x, int ldx,
                  Memory& memory, const float* context) {
    const int m = rows.count(), dim = actor.width;
    take(actor.maps[0], both, ld_both, m, maps_, context);
    int width = actor.maps[0].outputs();
    if (actor.kind == kRecurrent) return act_recurrent(actor, rows, x, ldx, memory);
    for (size_t i = 1; i < actor.maps.size(); ++i) {  // the hidden layers of ff and ff2
      for (int r = 0; r < m; ++r) map(row(maps_, r, width), width, [](V v) { return sigmoid(v); });
      std::swap(maps_, gates_);
      take(actor.maps[i], gates_.data(), width, m, maps_);
      width = actor.maps[i].outputs();
    }
    for (int r = 0; r < m; ++r) {
      float* to = x + static_cast<size_t>(r) * ldx;
      float* y = row(maps_, r, width);
      if (actor.kind == kGate) {
        map(y, y + dim, dim, [](V gate, V action) { return sigmoid(gate) * tanh(action); });
        add(to, y, dim);
      } else {
        map(to, y, dim, [](V v, V action) { return v + tanh(action); });
      }
    }
  }

  // y = [x U_1, x U_2, ...], with `context` added to what the first matrix gives, if it is not null
  void take(const Maps& maps, const float* x, int ldx, int m, std::vector<float>& y, const float* context = nullptr) {
    const int outputs = maps.outputs();
    grow(y, static_cast<size_t>(m) * outputs);
    const auto multiply = [&](const Matrix& matrix, std::vector<float>& to) {
      mul_(matrix, x, ldx, m, to.data(), matrix.rows);
      if (context) add(to.data(), context, m * matrix.rows);
    };
    if (maps.full) return multiply(*maps.full, y);
    const int factors = maps.down->rows;
    grow(factors_, static_cast<size_t>(m) * factors);
    multiply(*maps.down, factors_);
    int in = 0, out = 0;
    for (auto* up : maps.up) {
      mul_(*up, factors_.data() + in, factors, m, y.data() + out, outputs);
      in += up->cols;
      out += up->rows;
    }
  }

  void act_recurrent(const Actor& actor, const Rows& rows, float* x, int ldx, Memory& memory) {
    const int n = actor.memory(), m = rows.count();
    state_.resize(std::max(state_.size(), static_cast<size_t>(m) * n));
    reset_.resize(state_.size());
    for (int r = 0; r < m; ++r) std::memcpy(row(state_, r, n), memory.last(rows.parent[r]), n * sizeof(float));
    take(actor.maps[1], state_.data(), n, m, gates_);  // s W^z, s W^r beside maps_: x U^z, x U^r, x U^h
    for (int r = 0; r < m; ++r) {
      float* gates = row(gates_, r, 2 * n);
      map(gates, row(maps_, r, 3 * n), 2 * n, [](V a, V b) { return sigmoid(a + b); });
      std::memcpy(row(reset_, r, n), row(state_, r, n), n * sizeof(float));
      map(row(reset_, r, n), gates + n, n, [](V state, V gate) { return state * gate; });
    }
    take(actor.maps[2], reset_.data(), n, m, candidate_);
    memory.start_step(m);
    for (int r = 0; r < m; ++r) {
      float* state = row(state_, r, n);
      float* fresh = row(candidate_, r, n);
      map(fresh, &maps_[static_cast<size_t>(r) * 3 * n + 2 * n], n, [](V a, V b) { return tanh(a + b); });
      map(state, fresh, n, [](V old, V now) { return old - now; });
      map(state, row(gates_, r, 2 * n), n, [](V difference, V z) { return difference * z; });
      add(state, fresh, n);  // (1 - z) now + z old
      std::memcpy(memory.now(r), state, n * sizeof(float));
    }
    memory.end_step();
    take(actor.maps[3], state_.data(), n, m, maps_);
    for (int r = 0; r < m; ++r) add(x + static_cast<size_t>(r) * ldx, row(maps_, r, actor.width), actor.width);
  }
};

}  // namespace tg
