// What a search knows of a model: a decoder that takes steps for rows that the search chooses.
//
// A row is a live hypothesis. Sentences of a batch are kept one after another, without padding, and the rows of a
// sentence are neighbours. Nothing is copied when a search goes on with other rows, or with fewer: a row says which row
// of the step before it continues, and finds there what it needs.
#pragma once

#include <memory>

#include "tensors.h"

namespace tg {

// Row i of rows that are `ld` floats apart
template <class Rows>
inline auto row(Rows& rows, size_t i, size_t ld) {
  return &rows[i * ld];
}

// Makes room for n floats: what holds a step's rows only grows
inline void grow(std::vector<float>& x, size_t n) {
  if (x.size() < n) x.resize(n);
}

struct Sources {
  const int32_t* tokens;    // of all sentences, one after another, each with its eos
  std::vector<int> starts;  // of each sentence, and the end of the last
  int count() const { return static_cast<int>(starts.size()) - 1; }
  int length(int sentence) const { return starts[sentence + 1] - starts[sentence]; }
};

struct Rows {
  int step = 0;               // that is to be taken, from 0 on
  std::vector<int> sentence;  // of each row, never falling
  std::vector<int> token;     // its last one
  std::vector<int> parent;    // the row of the last step that it continues; at step 0 its sentence
  int count() const { return static_cast<int>(token.size()); }
  void clear() {
    sentence.clear();
    token.clear();
    parent.clear();
  }
  void add(int of_sentence, int last_token, int parent_row) {
    sentence.push_back(of_sentence);
    token.push_back(last_token);
    parent.push_back(parent_row);
  }
};

class Acting;

class Decoder {  // of one batch
 public:
  explicit Decoder(int threads) : threads_(threads) {}
  virtual ~Decoder() = default;
  // Encodes the sentences and prepares what depends on them alone
  virtual void begin(const Sources& sources) = 0;
  // A step of every row: rows x output().cols features, of which the output projection makes logits
  virtual const float* step(const Rows& rows) = 0;
  virtual const Matrix& output() const = 0;
  // What its actors act with
  virtual Acting& acting() = 0;
  // logits of some of the rows that `step` gave features of, by the output projection or some rows of it: count x rows
  void project(const Matrix& projection, const float* features, int count, float* logits) {
    mul(projection, features, projection.cols, count, logits, projection.rows);
  }

 protected:
  const int threads_;

  void mul(const Matrix& w, const float* x, int ldx, int m, float* y, int ldy) {
    product(w, x, ldx, m, y, ldy, threads_, rounded_);
  }

 private:
  Rounded rounded_;
};

// A model of some family, connected to its tensors and then only read
class Family {
 public:
  virtual ~Family() = default;
  virtual std::unique_ptr<Decoder> decoder(int threads) const = 0;
};

// Rows that a decoder keeps for every step, such as keys and values; a step's rows stay where they are.
class StepCache {
 public:
  explicit StepCache(int width) : width_(width) {}
  // Room for the rows of the next step
  float* add(int rows) {
    const size_t n = static_cast<size_t>(rows) * width_;
    if (blocks_.empty() || used_ + n > blocks_.back().size()) {
      blocks_.emplace_back(std::max(n, blocks_.empty() ? n * 8 : blocks_.back().size()));
      used_ = 0;
    }
    steps_.push_back(blocks_.back().data() + used_);
    used_ += n;
    return steps_.back();
  }
  const float* at(int step, int row) const { return steps_[step] + static_cast<size_t>(row) * width_; }

 private:
  int width_;
  size_t used_ = 0;
  std::vector<Aligned<float>> blocks_;
  std::vector<float*> steps_;
};

// For every row of a step, which rows of the steps before it continues
class Ancestors {
 public:
  void follow(const Rows& rows) {
    const int length = rows.step + 1;
    if (length > stride_) widen(2 * length);
    next_.resize(static_cast<size_t>(rows.count()) * stride_);
    for (int r = 0; r < rows.count(); ++r) {
      int* to = row(next_, r, stride_);
      if (rows.step) std::memcpy(to, row(table_, rows.parent[r], stride_), rows.step * sizeof(int));
      to[rows.step] = r;
    }
    std::swap(table_, next_);
  }
  // The row at steps 0, 1, ... up to this one, at which it is r itself
  const int* of(int r) const { return row(table_, r, stride_); }

 private:
  void widen(int stride) {
    const size_t count = stride_ ? table_.size() / stride_ : 0;
    std::vector<int> wider(count * stride);
    for (size_t r = 0; r < count; ++r) std::copy_n(row(table_, r, stride_), stride_, row(wider, r, stride));
    table_ = std::move(wider);
    stride_ = stride;
  }
  int stride_ = 0;
  std::vector<int> table_, next_;
};

// What a recurrence remembers: a row of the last step (before step 0, of a sentence) is read, a row of this one
// written.
class Memory {
 public:
  void begin(int sentences, int width) {
    width_ = width;
    last_.assign(static_cast<size_t>(sentences) * width, 0.f);
  }
  void start_step(int rows) { now_.resize(static_cast<size_t>(rows) * width_); }
  void end_step() { std::swap(last_, now_); }
  float* last(int parent) { return row(last_, parent, width_); }
  float* now(int r) { return row(now_, r, width_); }

 private:
  int width_ = 0;
  std::vector<float> last_, now_;
};

}  // namespace tg
