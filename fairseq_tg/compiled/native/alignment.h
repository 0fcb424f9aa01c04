// How a decoder's state looks at its source where there is one head: the families before the Transformer.
#pragma once

#include <algorithm>
#include <cmath>

#include "vectors.h"

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

// In place; `x` has room for n floats rounded up to whole vectors
inline void softmax(float* x, int n) {
  float largest = -INFINITY;
  for (int t = 0; t < n; ++t) largest = std::max(largest, x[t]);
  map(x, n, [=](V v) { return exp(v - splat(largest)); });
  float total = 0.f;
  for (int t = 0; t < n; ++t) total += x[t];
  const float scale = 1.f / total;
  map(x, n, [=](V v) { return v * splat(scale); });
}

// y += the values, rows of `ld` floats, by their weights
inline void mix(const float* weights, const float* values, int ld, int n, int dim, float* y) {
  int i = 0;
  for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
    V s0 = load(y + i), s1 = load(y + i + kLanes), s2 = load(y + i + 2 * kLanes), s3 = load(y + i + 3 * kLanes);
    const float* value = values + i;
    for (int t = 0; t < n; ++t, value += ld) {
      V w = splat(weights[t]);
      s0 += w * load(value);
      s1 += w * load(value + kLanes);
      s2 += w * load(value + 2 * kLanes);
      s3 += w * load(value + 3 * kLanes);
    }
    store(y + i, s0);
    store(y + i + kLanes, s1);
    store(y + i + 2 * kLanes, s2);
    store(y + i + 3 * kLanes, s3);
  }
  for (; i < dim; ++i) {
    float s = y[i];
    for (int t = 0; t < n; ++t) s += weights[t] * values[static_cast<size_t>(t) * ld + i];
    y[i] = s;
  }
}

}  // namespace tg
