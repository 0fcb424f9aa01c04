// Attention of many queries to the keys and values of one sentence, as two products with packed tiles.
#pragma once

#include <algorithm>

#include "layers.h"
#include "product.h"

namespace tg {

// m rows of x with panels of weights that are packed as a Matrix is, without bias; y has whole panels
template <int M = kTileRows>
inline void multiply_tiles(const float* x, int ldx, int m, const float* w, int panels, int cols, float* y, int ldy) {
  const size_t panel = static_cast<size_t>(cols) * kPanel;
  const Tile tile{0, cols, true, false, kPanel, {}};
  constexpr int N = tile_panels(M);
  for (; m >= M; m -= M, x += static_cast<size_t>(M) * ldx, y += static_cast<size_t>(M) * ldy) {
    int p = 0;
    for (; p + N <= panels; p += N) float_tile<M, N>(x, ldx, w + p * panel, panel, nullptr, y + p * kPanel, ldy, tile);
    if constexpr (N > 1) {
      for (; p < panels; ++p) float_tile<M, 1>(x, ldx, w + p * panel, panel, nullptr, y + p * kPanel, ldy, tile);
    }
  }
  if constexpr (M > 1) {
    if (m) multiply_tiles<M - 1>(x, ldx, m, w, panels, cols, y, ldy);
  }
}

// The keys and values of a sentence of n tokens, packed for every head: [panel of keys][dimension][key in panel], and
// [panel of dimensions][token][dimension in panel].
class PackedSentence {
 public:
  PackedSentence(int n, int heads, int head_dim)
      : n_(n),
        heads_(heads),
        head_dim_(head_dim),
        key_panels_((n + kPanel - 1) / kPanel),
        value_panels_((head_dim + kPanel - 1) / kPanel) {}
  size_t size() const { return heads_ * (keys() + values()); }

  // keys and values: rows that are ld apart, all heads beside each other; data: `size` floats
  void pack(const float* keys_in, const float* values_in, size_t ld, float* data) const {
    for (int h = 0; h < heads_; ++h) {
      float* k = data + h * (keys() + values());
      float* v = k + keys();
      std::fill_n(k, keys() + values(), 0.f);
      for (int t = 0; t < n_; ++t) {
        const float* key = keys_in + t * ld + static_cast<size_t>(h) * head_dim_;
        const float* value = values_in + t * ld + static_cast<size_t>(h) * head_dim_;
        float* column = k + static_cast<size_t>(t / kPanel) * head_dim_ * kPanel + t % kPanel;
        for (int i = 0; i < head_dim_; ++i) column[static_cast<size_t>(i) * kPanel] = key[i];
        for (int i = 0; i < head_dim_; ++i)
          v[(static_cast<size_t>(i / kPanel) * n_ + t) * kPanel + i % kPanel] = value[i];
      }
    }
  }

  // m queries, scaled already, ldq apart -> m answers, ldo apart. `room` is made as large as it has to be. The first
  // query's weights, their mean over heads, are added to `seen`.
  void attend(const float* data, const float* q, int ldq, int m, float* out, int ldo, std::vector<float>& room,
              float* seen = nullptr) const {
    const int wide = key_panels_ * kPanel, answer = value_panels_ * kPanel;
    room.resize(std::max(room.size(), static_cast<size_t>(m) * (wide + answer)));
    float* weights = room.data();
    float* answers = weights + static_cast<size_t>(m) * wide;
    for (int h = 0; h < heads_; ++h) {
      const float* k = data + h * (keys() + values());
      multiply_tiles(q + static_cast<size_t>(h) * head_dim_, ldq, m, k, key_panels_, head_dim_, weights, wide);
      for (int r = 0; r < m; ++r) softmax(weights + static_cast<size_t>(r) * wide, n_);
      for (int t = 0; seen && t < n_; ++t) seen[t] += weights[t] / heads_;
      multiply_tiles(weights, wide, m, k + keys(), value_panels_, n_, answers, answer);
      for (int r = 0; r < m; ++r)
        std::memcpy(out + static_cast<size_t>(r) * ldo + static_cast<size_t>(h) * head_dim_,
                    answers + static_cast<size_t>(r) * answer, head_dim_ * sizeof(float));
    }
  }

 private:
  const int n_, heads_, head_dim_, key_panels_, value_panels_;
  size_t keys() const { return static_cast<size_t>(key_panels_) * head_dim_ * kPanel; }
  size_t values() const { return static_cast<size_t>(value_panels_) * n_ * kPanel; }
};

}  // namespace tg
