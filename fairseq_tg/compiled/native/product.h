// Products with packed weights, float32 and int8.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <vector>
#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "vectors.h"

namespace tg {

constexpr int kPanel = 16;  // output rows that are packed, and computed, together

// Memory for weights: aligned to cache lines, on huge pages where there are any, because it is streamed end to end.
template <class T>
class Aligned {
 public:
  Aligned() = default;
  explicit Aligned(size_t n) : size_(n) {
    constexpr size_t page = size_t{1} << 21;
    size_t bytes = std::max<size_t>(n * sizeof(T), 64);
    size_t align = bytes >= page ? page : 64;
    bytes = (bytes + align - 1) / align * align;
    void* p = std::aligned_alloc(align, bytes);
    if (!p) throw std::bad_alloc();
#ifdef __linux__
    if (align == page) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    data_ = static_cast<T*>(p);
  }
  Aligned(Aligned&& o) noexcept : data_(o.data_), size_(o.size_) {
    o.data_ = nullptr;
    o.size_ = 0;
  }
  Aligned& operator=(Aligned&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~Aligned() { std::free(data_); }
  T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// y = W x + b, with W (rows x cols) packed in panels of kPanel rows.
//   float32: [panel][col][row in panel];  int8: [panel][pair of cols][row in panel][col in pair], a scale for each row
struct Matrix {
  int rows = 0, cols = 0;
  Aligned<float> weights;
  Aligned<int8_t> quantized;
  std::vector<float> scales;
  std::vector<float> bias;  // padded to whole panels, zeros if there is none

  int panels() const { return (rows + kPanel - 1) / kPanel; }
  bool int8() const { return quantized.size() > 0; }

  static Matrix pack(const float* w, int rows, int cols) {
    Matrix m;
    m.rows = rows;
    m.cols = cols;
    m.bias.assign(static_cast<size_t>(m.panels()) * kPanel, 0.f);
    m.weights = Aligned<float>(static_cast<size_t>(m.panels()) * kPanel * cols);
    for (int p = 0; p < m.panels(); ++p)
      for (int c = 0; c < cols; ++c)
        for (int r = 0; r < kPanel; ++r) {
          int row = p * kPanel + r;
          m.weights[(static_cast<size_t>(p) * cols + c) * kPanel + r] =
              row < rows ? w[static_cast<size_t>(row) * cols + c] : 0.f;
        }
    return m;
  }

  static Matrix pack(const int8_t* w, const float* scales, int rows, int cols) {
    Matrix m;
    m.rows = rows;
    m.cols = cols;
    m.bias.assign(static_cast<size_t>(m.panels()) * kPanel, 0.f);
    m.scales.assign(static_cast<size_t>(m.panels()) * kPanel, 0.f);
    std::copy(scales, scales + rows, m.scales.begin());
    int pairs = (cols + 1) / 2;
    m.quantized = Aligned<int8_t>(static_cast<size_t>(m.panels()) * kPanel * pairs * 2);
    for (int p = 0; p < m.panels(); ++p)
      for (int c = 0; c < pairs * 2; ++c)
        for (int r = 0; r < kPanel; ++r) {
          int row = p * kPanel + r;
          size_t at = ((static_cast<size_t>(p) * pairs + c / 2) * kPanel + r) * 2 + c % 2;
          m.quantized[at] = row < rows && c < cols ? w[static_cast<size_t>(row) * cols + c] : 0;
        }
    return m;
  }
};

// M rows of x with one panel: y[r][0..16). `live` lanes of the panel are rows of the matrix.
template <int M>
TG_INLINE void float_tile(const float* x, int ldx, const float* w, int cols, const float* bias, float* y, int ldy,
                          int live) {
  constexpr int unroll = M == 1 ? 4 : M == 2 ? 2 : 1;  // enough sums under way to hide the latency of one
  V lo[M][unroll], hi[M][unroll];
  for (int r = 0; r < M; ++r)
    for (int u = 0; u < unroll; ++u) lo[r][u] = hi[r][u] = splat(0.f);
  int c = 0;
  for (; c + unroll <= cols; c += unroll)
    for (int u = 0; u < unroll; ++u) {
      V w0 = load(w + (c + u) * kPanel), w1 = load(w + (c + u) * kPanel + kLanes);
      for (int r = 0; r < M; ++r) {
        V v = splat(x[r * ldx + c + u]);
        lo[r][u] += v * w0;
        hi[r][u] += v * w1;
      }
    }
  for (; c < cols; ++c)
    for (int r = 0; r < M; ++r) {
      V v = splat(x[r * ldx + c]);
      lo[r][0] += v * load(w + c * kPanel);
      hi[r][0] += v * load(w + c * kPanel + kLanes);
    }
  for (int r = 0; r < M; ++r) {
    for (int u = 1; u < unroll; ++u) lo[r][0] += lo[r][u], hi[r][0] += hi[r][u];
    V y0 = lo[r][0] + load(bias), y1 = hi[r][0] + load(bias + kLanes);
    if (live == kPanel) {
      store(y + r * ldy, y0);
      store(y + r * ldy + kLanes, y1);
    } else {
      float whole[kPanel];
      store(whole, y0);
      store(whole + kLanes, y1);
      std::memcpy(y + r * ldy, whole, live * sizeof(float));
    }
  }
}

// The int8 product. Activations are rounded to 16 bits (fewer for very long rows, so that a sum of products with 8-bit
// weights cannot leave 32 bits): next to the weights' rounding, that of the activations is not to be seen.
inline int activation_limit(int cols) {
  return static_cast<int>(std::min<int64_t>(32767, INT32_MAX / (int64_t{128} * std::max(cols, 1))));
}

inline float quantize_row(const float* x, int cols, int16_t* q) {
  const float most = activation_limit(cols);
  float largest = 0.f;
  for (int c = 0; c < cols; ++c) largest = std::max(largest, std::fabs(x[c]));
  const float scale = largest > most * FLT_MIN ? largest / most : 1.f;  // what is smaller is zero
  const float inverse = 1.f / scale;
  for (int c = 0; c < cols; ++c) {
    // In this order what is no number becomes one: there is no saying what a cast would make of it
    const float v = std::min(most, std::max(-most, x[c] * inverse));
    q[c] = static_cast<int16_t>(v + std::copysign(0.5f, v));
  }
  if (cols % 2) q[cols] = 0;
  return scale;
}

template <int M>
TG_INLINE void int8_tile(const int16_t* x, int ldx, const float* x_scales, const int8_t* w, int pairs,
                         const float* scales, const float* bias, float* y, int ldy, int live) {
  constexpr int unroll = M == 1 ? 4 : M == 2 ? 2 : 1;
  VI lo[M][unroll], hi[M][unroll];
  for (int r = 0; r < M; ++r)
    for (int u = 0; u < unroll; ++u) lo[r][u] = hi[r][u] = VI{};
  auto step = [&](int c, int u) __attribute__((always_inline)) {
#ifdef __AVX2__
    const __m128i* at = reinterpret_cast<const __m128i*>(w + static_cast<size_t>(c) * kPanel * 2);
    __m256i w0 = _mm256_cvtepi8_epi16(_mm_load_si128(at)), w1 = _mm256_cvtepi8_epi16(_mm_load_si128(at + 1));
    for (int r = 0; r < M; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * ldx + c * 2, sizeof pair);
      __m256i v = _mm256_set1_epi32(pair);
      lo[r][u] += reinterpret_cast<VI>(_mm256_madd_epi16(v, w0));
      hi[r][u] += reinterpret_cast<VI>(_mm256_madd_epi16(v, w1));
    }
#else
    const int8_t* at = w + static_cast<size_t>(c) * kPanel * 2;
    for (int r = 0; r < M; ++r) {
      int32_t a = x[r * ldx + c * 2], b = x[r * ldx + c * 2 + 1];
      for (int i = 0; i < kLanes; ++i) {
        lo[r][u][i] += a * at[2 * i] + b * at[2 * i + 1];
        hi[r][u][i] += a * at[2 * (i + kLanes)] + b * at[2 * (i + kLanes) + 1];
      }
    }
#endif
  };
  int c = 0;
  for (; c + unroll <= pairs; c += unroll)
    for (int u = 0; u < unroll; ++u) step(c + u, u);
  for (; c < pairs; ++c) step(c, 0);
  for (int r = 0; r < M; ++r) {
    for (int u = 1; u < unroll; ++u) lo[r][0] += lo[r][u], hi[r][0] += hi[r][u];
    V s = splat(x_scales[r]);
    V y0 = __builtin_convertvector(lo[r][0], V) * s * load(scales) + load(bias);
    V y1 = __builtin_convertvector(hi[r][0], V) * s * load(scales + kLanes) + load(bias + kLanes);
    float whole[kPanel];
    store(whole, y0);
    store(whole + kLanes, y1);
    std::memcpy(y + r * ldy, whole, live * sizeof(float));
  }
}

// Room for the rounded activations of a product; one for each call of the engine.
struct Rounded {
  std::vector<int16_t> values;
  std::vector<float> scales;
};

// m rows of x (ldx apart) -> m rows of y (ldy apart): y = x W^T + b
inline void product(const Matrix& w, const float* x, int ldx, int m, float* y, int ldy, int threads, Rounded& rounded) {
  const int pairs = (w.cols + 1) / 2;
  if (w.int8()) {
    rounded.values.resize(static_cast<size_t>(m) * pairs * 2);
    rounded.scales.resize(m);
    for (int r = 0; r < m; ++r)
      rounded.scales[r] =
          quantize_row(x + static_cast<size_t>(r) * ldx, w.cols, &rounded.values[static_cast<size_t>(r) * pairs * 2]);
  }
  auto rows = [&](auto count, int r, int p) __attribute__((always_inline)) {
    constexpr int M = decltype(count)::value;
    int live = std::min(kPanel, w.rows - p * kPanel);
    float* out = y + static_cast<size_t>(r) * ldy + p * kPanel;
    if (w.int8())
      int8_tile<M>(&rounded.values[static_cast<size_t>(r) * pairs * 2], pairs * 2, &rounded.scales[r],
                   w.quantized.data() + static_cast<size_t>(p) * pairs * 2 * kPanel, pairs, &w.scales[p * kPanel],
                   &w.bias[p * kPanel], out, ldy, live);
    else
      float_tile<M>(x + static_cast<size_t>(r) * ldx, ldx, w.weights.data() + static_cast<size_t>(p) * w.cols * kPanel,
                    w.cols, &w.bias[p * kPanel], out, ldy, live);
  };
  auto panel = [&](int p) {
    int r = 0;
    for (; r + 6 <= m; r += 6) rows(std::integral_constant<int, 6>(), r, p);
    switch (m - r) {
      case 5:
        rows(std::integral_constant<int, 5>(), r, p);
        break;
      case 4:
        rows(std::integral_constant<int, 4>(), r, p);
        break;
      case 3:
        rows(std::integral_constant<int, 3>(), r, p);
        break;
      case 2:
        rows(std::integral_constant<int, 2>(), r, p);
        break;
      case 1:
        rows(std::integral_constant<int, 1>(), r, p);
        break;
    }
  };
  const int panels = w.panels();
  // Below this many products waking the other threads costs more than they give
  const bool shared = threads > 1 && static_cast<int64_t>(m) * w.rows * w.cols >= 65536;
  if (!shared) {
    for (int p = 0; p < panels; ++p) panel(p);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(std::min(threads, panels))
  for (int p = 0; p < panels; ++p) panel(p);
}

}  // namespace tg
