// What a layer does beside products: layer norm, attention, and the choice of a token.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace tg {

struct Norm {
  std::vector<float> weight, bias;
  void apply(const float* x, float* y) const {
    const int n = static_cast<int>(weight.size());
    V total = splat(0.f);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) total += load(x + i);
    float mean = sum(total);
    for (int j = i; j < n; ++j) mean += x[j];
    mean /= n;
    V square = splat(0.f);
    for (i = 0; i + kLanes <= n; i += kLanes) {
      V d = load(x + i) - splat(mean);
      square += d * d;
    }
    float variance = sum(square);
    for (int j = i; j < n; ++j) variance += (x[j] - mean) * (x[j] - mean);
    const float scale = 1.f / std::sqrt(variance / n + 1e-5f);
    for (i = 0; i + kLanes <= n; i += kLanes)
      store(y + i, (load(x + i) - splat(mean)) * splat(scale) * load(&weight[i]) + load(&bias[i]));
    for (; i < n; ++i) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
  }
};

// In place
inline void softmax(float* x, int n) {
  float largest = -INFINITY;
  for (int t = 0; t < n; ++t) largest = std::max(largest, x[t]);
  map(x, n, [=](V v) { return exp(v - splat(largest)); });
  float total = 0.f;
  for (int t = 0; t < n; ++t) total += x[t];
  const float scale = 1.f / total;
  map(x, n, [=](V v) { return v * splat(scale); });
}

// N vectors of a weighted sum of n rows
template <int N, class Row>
TG_INLINE void weigh(Row row, const float* weights, int n, float scale, float* out) {
  V sums[N] = {};
  for (int t = 0; t < n; ++t) {
    const float* from = row(t);
    const V w = splat(weights[t]);
    for (int i = 0; i < N; ++i) sums[i] += w * load(from + i * kLanes);
  }
  for (int i = 0; i < N; ++i) store(out + i * kLanes, sums[i] * splat(scale));
}

// One query of `heads` heads against `n` keys and values: softmax(q K^T) V. `key(t)` is the row of a key, all heads
// beside each other; its value lies `to_value` floats behind. The query is scaled already. `weights` has room for `n`
// floats of every head, rounded up to whole vectors.
template <class Key>
inline void attend(const float* q, Key key, int to_value, int n, int heads, int head_dim, float* out, float* weights) {
  const int stride = (n + kLanes - 1) / kLanes * kLanes;
  for (int t = 0; t < n; ++t) {  // row by row, as they lie in memory
    const float *k = key(t), *asked = q;
    for (int h = 0; h < heads; ++h, k += head_dim, asked += head_dim) {
      V dot = splat(0.f);
      int i = 0;
      for (; i + kLanes <= head_dim; i += kLanes) dot += load(asked + i) * load(k + i);
      float s = sum(dot);
      for (; i < head_dim; ++i) s += asked[i] * k[i];
      weights[static_cast<size_t>(h) * stride + t] = s;
    }
  }
  for (int h = 0; h < heads; ++h) {
    float* w = weights + static_cast<size_t>(h) * stride;
    float largest = -INFINITY, total = 0.f;
    for (int t = 0; t < n; ++t) largest = std::max(largest, w[t]);
    map(w, n, [=](V v) { return exp(v - splat(largest)); });
    for (int t = 0; t < n; ++t) total += w[t];
    const float scale = 1.f / total;
    int i = h * head_dim;
    const int end = i + head_dim;
    const auto value = [&](int t) { return key(t) + to_value + i; };
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) weigh<4>(value, w, n, scale, out + i);
    if (i + 2 * kLanes <= end) weigh<2>(value, w, n, scale, out + i), i += 2 * kLanes;
    if (i + kLanes <= end) weigh<1>(value, w, n, scale, out + i), i += kLanes;
    for (; i < end; ++i) {
      float s = 0.f;
      for (int t = 0; t < n; ++t) s += w[t] * *value(t);
      out[i] = s * scale;
    }
  }
}

// The first index of the largest of n floats
inline int argmax(const float* x, int n) {
  V best = splat(-INFINITY);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    V v = load(x + i);
    best = v > best ? v : best;
  }
  float largest = -INFINITY;
  for (int j = 0; j < kLanes; ++j) largest = std::max(largest, best[j]);
  for (; i < n; ++i) largest = std::max(largest, x[i]);
  int at = 0;
  while (at < n - 1 && !(x[at] == largest)) ++at;
  return at;
}

inline float log_sum_exp(const float* x, int n) {
  V most = splat(-INFINITY);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V v = load(x + i);
    most = v > most ? v : most;
  }
  float largest = -INFINITY;
  for (int j = 0; j < kLanes; ++j) largest = std::max(largest, most[j]);
  for (; i < n; ++i) largest = std::max(largest, x[i]);
  V totals[2] = {};
  for (i = 0; i + 2 * kLanes <= n; i += 2 * kLanes) {
    totals[0] += exp(load(x + i) - splat(largest));
    totals[1] += exp(load(x + i + kLanes) - splat(largest));
  }
  float total = sum(totals[0]) + sum(totals[1]);
  for (; i < n; ++i) total += std::exp(x[i] - largest);
  return largest + std::log(total);
}

}  // namespace tg
