// The best continuations of a sentence's hypotheses.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace tg {

struct Candidate {
  float score;
  int row, token;
};

// The `wanted` best of all that is added, whose score is over -inf; of equals those of the first row and token.
// What is not over the worst of those found so far is passed over at the speed of reading it.
class Candidates {
 public:
  void begin(int wanted) {
    wanted_ = wanted;
    least_ = -INFINITY;
    found_.clear();
  }
  int wanted() const { return wanted_; }

  void add(float score, int row, int token) {
    if (!(score > least_)) return;
    found_.push_back({score, row, token});
    if (static_cast<int>(found_.size()) >= 2 * wanted_) cut();
  }

  // logits[i] + more of every token i, or of the token that is the i-th of `tokens`
  void scan(const float* logits, int n, int row, float more, const int* tokens = nullptr) {
    int i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      const V a = load(logits + i) + splat(more), b = load(logits + i + kLanes) + splat(more);
      if (!any((a > splat(least_)) | (b > splat(least_)))) continue;
      for (int j = i; j < i + 2 * kLanes; ++j) add(logits[j] + more, row, tokens ? tokens[j] : j);
    }
    for (; i < n; ++i) add(logits[i] + more, row, tokens ? tokens[i] : i);
  }

  const std::vector<Candidate>& sorted() {
    std::sort(found_.begin(), found_.end(), before);
    if (static_cast<int>(found_.size()) > wanted_) found_.resize(wanted_);
    return found_;
  }

 private:
  int wanted_ = 0;
  float least_ = -INFINITY;  // below which nothing is wanted any more
  std::vector<Candidate> found_;

  static bool before(const Candidate& a, const Candidate& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.row != b.row ? a.row < b.row : a.token < b.token;
  }
  void cut() {
    std::nth_element(found_.begin(), found_.begin() + (wanted_ - 1), found_.end(), before);
    found_.resize(wanted_);
    least_ = found_.back().score;
  }
};

}  // namespace tg
