// How a decoder's state looks at its source where there is one head: the families before the Transformer.
#pragma once

#include <algorithm>
#include <vector>

#include "layers.h"

namespace tg {

inline float dot(const float* x, const float* y, int n) {
  V s0 = splat(0.f), s1 = s0;
  int i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    s0 += load(x + i) * load(y + i);
    s1 += load(x + i + kLanes) * load(y + i + kLanes);
  }
  if (i + kLanes <= n) {
    s0 += load(x + i) * load(y + i);
    i += kLanes;
  }
  float s = sum(s0 + s1);
  for (; i < n; ++i) s += x[i] * y[i];
  return s;
}

// scores = q K^T, the n keys being rows of `ld` floats
inline void compare(const float* q, const float* keys, int ld, int n, int dim, float* scores) {
  for (int t = 0; t < n; ++t) scores[t] = dot(q, keys + static_cast<size_t>(t) * ld, dim);
}

constexpr int kTogether = 4;  // rows of one sentence that are answered at once

// How many rows from r on, at most kTogether, are of one sentence
inline int neighbours(const std::vector<int>& sentence, int r) {
  const int most = std::min(kTogether, static_cast<int>(sentence.size()) - r);
  int count = 1;
  while (count < most && sentence[r + count] == sentence[r]) ++count;
  return count;
}

// Elements of R rows that C vectors have
template <int R, int C>
TG_INLINE void mix_block(const float* weights, int ldw, const float* values, int ld, int n, float* y, int ldy) {
  V sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < C; ++i) sums[r][i] = load(y + static_cast<size_t>(r) * ldy + i * kLanes);
  for (int t = 0; t < n; ++t, values += ld) {
    V value[C];
    for (int i = 0; i < C; ++i) value[i] = load(values + i * kLanes);
    for (int r = 0; r < R; ++r) {
      const V weight = splat(weights[static_cast<size_t>(r) * ldw + t]);
      for (int i = 0; i < C; ++i) sums[r][i] += weight * value[i];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < C; ++i) store(y + static_cast<size_t>(r) * ldy + i * kLanes, sums[r][i]);
}

// For each of `rows` rows, at most R: y += the values, n rows of `ld` floats, by its weights. A sum is taken in the
// order of the values, however many rows are.
template <int R = kTogether>
inline void mix(int rows, const float* weights, int ldw, const float* values, int ld, int n, int dim, float* y,
                int ldy) {
  if constexpr (R > 1) {
    if (rows < R) return mix<R - 1>(rows, weights, ldw, values, ld, n, dim, y, ldy);
  }
  constexpr int C = R == 1 ? 4 : 2;
  int i = 0;
  for (; i + C * kLanes <= dim; i += C * kLanes) mix_block<R, C>(weights, ldw, values + i, ld, n, y + i, ldy);
  for (; i + kLanes <= dim; i += kLanes) mix_block<R, 1>(weights, ldw, values + i, ld, n, y + i, ldy);
  for (; i < dim; ++i)
    for (int r = 0; r < R; ++r) {
      float& s = y[static_cast<size_t>(r) * ldy + i];
      for (int t = 0; t < n; ++t)
        s += weights[static_cast<size_t>(r) * ldw + t] * values[static_cast<size_t>(t) * ld + i];
    }
}

}  // namespace tg
