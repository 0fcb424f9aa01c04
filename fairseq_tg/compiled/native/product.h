// Products with packed weights, float32 and int8.
//
// Every sum is taken in the order of the columns, however many rows and panels are computed together: a row's result
// depends neither on the other rows nor on threads.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "vectors.h"

namespace tg {

constexpr int kPanel = 16;  // output rows that are packed, and computed, together

// Memory for weights: aligned to cache lines, because it is streamed end to end. Much of it is on huge pages where
// there are any, and the system's own: what is freed of it does not lie unused between what stays.
template <class T>
class Aligned {
 public:
  Aligned() = default;
  explicit Aligned(size_t n) : size_(n) {
    const size_t bytes = (std::max<size_t>(n * sizeof(T), 1) + 63) / 64 * 64;
    void* p = bytes < kHugePage ? std::aligned_alloc(64, bytes) : map(bytes);
    if (!p) throw std::bad_alloc();
    data_ = static_cast<T*>(p);
  }
  Aligned(Aligned&& o) noexcept { *this = std::move(o); }
  Aligned& operator=(Aligned&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    std::swap(mapped_, o.mapped_);
    return *this;
  }
  ~Aligned() {
#ifdef __linux__
    if (mapped_) {
      munmap(data_, mapped_);
      return;
    }
#endif
    std::free(data_);
  }
  T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  static constexpr size_t kHugePage = size_t{1} << 21;
  T* data_ = nullptr;
  size_t size_ = 0, mapped_ = 0;  // bytes that are the system's own, if they are

  // Whole huge pages that begin where one does
  void* map(size_t bytes) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
#ifdef __linux__
    void* p = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(p) % kHugePage) % kHugePage;
    char* start = static_cast<char*>(p) + before;
    if (before) munmap(p, before);
    if (before < kHugePage) munmap(start + bytes, kHugePage - before);
    madvise(start, bytes, MADV_HUGEPAGE);
    mapped_ = bytes;
    return start;
#else
    return std::aligned_alloc(kHugePage, bytes);
#endif
  }
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

  // A row, times a number, as the product has it
  void row(int index, float scale, float* y) const {
    const size_t panel = index / kPanel, r = index % kPanel, pairs = (cols + 1) / 2;
    for (int c = 0; c < cols; ++c)
      y[c] = int8() ? quantized[((panel * pairs + c / 2) * kPanel + r) * 2 + c % 2] * (scales[index] * scale)
                    : weights[(panel * cols + c) * kPanel + r] * scale;
  }

  // Some of the rows
  Matrix take(const std::vector<int>& chosen) const {
    Matrix m;
    m.rows = static_cast<int>(chosen.size());
    m.cols = cols;
    const size_t padded = static_cast<size_t>(m.panels()) * kPanel, pairs = (cols + 1) / 2;
    m.bias.assign(padded, 0.f);
    if (int8()) {
      m.scales.assign(padded, 0.f);
      m.quantized = Aligned<int8_t>(padded * pairs * 2);
      take_panels(chosen, pairs, reinterpret_cast<const int16_t*>(quantized.data()),
                  reinterpret_cast<int16_t*>(m.quantized.data()));
    } else {
      m.weights = Aligned<float>(padded * cols);
      take_panels(chosen, cols, weights.data(), m.weights.data());
    }
    for (int i = 0; i < m.rows; ++i) {
      m.bias[i] = bias[chosen[i]];
      if (int8()) m.scales[i] = scales[chosen[i]];
    }
    return m;
  }

 private:
  // Whose panels have `depth` entries of every row; what is left of the last panel is its first row again
  template <class T>
  static void take_panels(const std::vector<int>& chosen, size_t depth, const T* from, T* to) {
    for (size_t first = 0; first < chosen.size(); first += kPanel) {
      const T* rows[kPanel];
      for (size_t r = 0; r < kPanel; ++r) {
        const size_t row = chosen[first + r < chosen.size() ? first + r : first];
        rows[r] = from + row / kPanel * depth * kPanel + row % kPanel;
      }
      for (size_t c = 0; c < depth; ++c, to += kPanel)
        for (size_t r = 0; r < kPanel; ++r) to[r] = rows[r][c * kPanel];
    }
  }
};

constexpr int kVectors = kPanel / kLanes;  // of a panel

// A tile is M rows of x with N panels. So many that the sums fill the registers, with enough of them under way to hide
// the latency of one.
#if defined(__AVX512F__)
constexpr int kTileRows = 8;
constexpr int tile_panels(int m) { return m == 1 ? 8 : m <= 4 ? 4 : 3; }
#elif defined(__x86_64__) && !defined(__AVX2__)
constexpr int kTileRows = 3;
constexpr int tile_panels(int) { return 1; }
#else
constexpr int kTileRows = 6;
constexpr int tile_panels(int m) { return m == 1 ? 4 : m == 2 ? 2 : 1; }
#endif

// Weights that a later turn begins with, two panels or the same one twice, to be on their way meanwhile; or null
struct Ahead {
  const char* panels[2] = {nullptr, nullptr};
  TG_INLINE void prefetch(size_t offset) const {
    if (!panels[0]) return;
    __builtin_prefetch(panels[0] + offset);
    __builtin_prefetch(panels[1] + offset);
  }
};

struct Tile {
  int begin, end;    // columns (of int8: pairs of them) of this turn
  bool first, last;  // whether the sums begin with it, whether they end
  int live;          // rows of the matrix in the last panel of the tile
  Ahead ahead;
};

// The sums of a tile go to y, as bits of float or int32, and come back from there
template <class Vector>
TG_INLINE Vector fetch(const float* y, int live) {
  Vector v{};
  if (live >= kLanes)
    std::memcpy(&v, y, sizeof v);
  else if (live > 0)
    std::memcpy(&v, y, live * sizeof(float));
  return v;
}
template <class Vector>
TG_INLINE void put(float* y, Vector v, int live) {
  if (live >= kLanes)
    std::memcpy(y, &v, sizeof v);
  else if (live > 0)
    std::memcpy(y, &v, live * sizeof(float));
}

template <int M, int N>
TG_INLINE void float_tile(const float* x, int ldx, const float* w, size_t panel, const float* bias, float* y, int ldy,
                          Tile tile) {
  V sums[M][N][kVectors];
  const float* rows[M];
  for (int r = 0; r < M; ++r) {
    rows[r] = x + static_cast<size_t>(r) * ldx;
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < kVectors; ++i) {
        const int live = n + 1 < N ? kLanes : tile.live - i * kLanes;
        sums[r][n][i] = tile.first ? V{} : fetch<V>(y + static_cast<size_t>(r) * ldy + n * kPanel + i * kLanes, live);
      }
  }
  for (int c = tile.begin; c < tile.end; ++c) {
    tile.ahead.prefetch(static_cast<size_t>(c - tile.begin) * kPanel * sizeof(float));
    V weights[N][kVectors];
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < kVectors; ++i)
        weights[n][i] = load(w + n * panel + static_cast<size_t>(c) * kPanel + i * kLanes);
    for (int r = 0; r < M; ++r) {
      const V v = splat(rows[r][c]);
      for (int n = 0; n < N; ++n)
        for (int i = 0; i < kVectors; ++i) sums[r][n][i] += v * weights[n][i];
    }
  }
  for (int r = 0; r < M; ++r)
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < kVectors; ++i) {
        const int live = n + 1 < N ? kLanes : tile.live - i * kLanes;
        if (tile.last) sums[r][n][i] += load(bias + n * kPanel + i * kLanes);
        put(y + static_cast<size_t>(r) * ldy + n * kPanel + i * kLanes, sums[r][n][i], live);
      }
}

// The int8 product. Activations are rounded to 16 bits (fewer for very long rows, so that a sum of products with 8-bit
// weights cannot leave 32 bits): next to the weights' rounding, that of the activations is not to be seen.
inline int activation_limit(int cols) {
  return static_cast<int>(std::min<int64_t>(32767, INT32_MAX / (int64_t{128} * std::max(cols, 1))));
}

inline float quantize_row(const float* x, int cols, int16_t* q) {
  const float most = activation_limit(cols);
  V largest_of = splat(0.f);
  int c = 0;
  for (; c + kLanes <= cols; c += kLanes) {
    const V v = load(x + c), size = v < splat(0.f) ? -v : v;
    largest_of = size > largest_of ? size : largest_of;
  }
  float largest = 0.f;
  for (int i = 0; i < kLanes; ++i) largest = std::max(largest, largest_of[i]);
  for (; c < cols; ++c) largest = std::max(largest, std::fabs(x[c]));
  const float scale = largest > most * FLT_MIN ? largest / most : 1.f;  // what is smaller is zero
  const float inverse = 1.f / scale;
  for (c = 0; c < cols; ++c) {
    // In this order what is no number becomes one: there is no saying what a cast would make of it
    const float v = std::min(most, std::max(-most, x[c] * inverse));
    q[c] = static_cast<int16_t>(v + std::copysign(0.5f, v));
  }
  if (cols % 2) q[cols] = 0;
  return scale;
}

template <int M, int N>
TG_INLINE void int8_tile(const int16_t* x, int ldx, const float* x_scales, const int8_t* w, size_t panel,
                         const float* scales, const float* bias, float* y, int ldy, Tile tile) {
  VI sums[M][N][kVectors];
  const int16_t* rows[M];
  for (int r = 0; r < M; ++r) {
    rows[r] = x + static_cast<size_t>(r) * ldx;
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < kVectors; ++i) {
        const int live = n + 1 < N ? kLanes : tile.live - i * kLanes;
        sums[r][n][i] = tile.first ? VI{} : fetch<VI>(y + static_cast<size_t>(r) * ldy + n * kPanel + i * kLanes, live);
      }
  }
  for (int c = tile.begin; c < tile.end; ++c) {
    const int8_t* at = w + static_cast<size_t>(c) * kPanel * 2;
    tile.ahead.prefetch(static_cast<size_t>(c - tile.begin) * kPanel * 2);
#if defined(__AVX512F__)
    __m512i weights[N];
    for (int n = 0; n < N; ++n)
      weights[n] = _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(at + n * panel)));
    for (int r = 0; r < M; ++r) {
      int32_t pair;
      std::memcpy(&pair, rows[r] + c * 2, sizeof pair);
      const __m512i v = _mm512_set1_epi32(pair);
      for (int n = 0; n < N; ++n)
        sums[r][n][0] =
            reinterpret_cast<VI>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sums[r][n][0]), v, weights[n]));
    }
#elif defined(__AVX2__)
    __m256i weights[N][2];
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < 2; ++i)
        weights[n][i] = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(at + n * panel) + i));
    for (int r = 0; r < M; ++r) {
      int32_t pair;
      std::memcpy(&pair, rows[r] + c * 2, sizeof pair);
      const __m256i v = _mm256_set1_epi32(pair);
      for (int n = 0; n < N; ++n)
        for (int i = 0; i < 2; ++i) sums[r][n][i] += reinterpret_cast<VI>(_mm256_madd_epi16(v, weights[n][i]));
    }
#elif defined(__SSE2__)
    __m128i weights[N][4];  // of four rows each
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < 2; ++i) {
        const __m128i both = _mm_load_si128(reinterpret_cast<const __m128i*>(at + n * panel) + i);
        weights[n][2 * i] = _mm_srai_epi16(_mm_unpacklo_epi8(both, both), 8);
        weights[n][2 * i + 1] = _mm_srai_epi16(_mm_unpackhi_epi8(both, both), 8);
      }
    for (int r = 0; r < M; ++r) {
      int32_t pair;
      std::memcpy(&pair, rows[r] + c * 2, sizeof pair);
      const __m128i v = _mm_set1_epi32(pair);
      for (int n = 0; n < N; ++n)
        for (int i = 0; i < 2; ++i) {
          const __m128i half[2] = {_mm_madd_epi16(v, weights[n][2 * i]), _mm_madd_epi16(v, weights[n][2 * i + 1])};
          VI both;
          std::memcpy(&both, half, sizeof both);
          sums[r][n][i] += both;
        }
    }
#elif defined(__ARM_NEON)
    for (int n = 0; n < N; ++n) {
      const int8x16x2_t both = vld2q_s8(at + n * panel);  // of 16 rows, first and second column
      const int16x8_t even[2] = {vmovl_s8(vget_low_s8(both.val[0])), vmovl_s8(vget_high_s8(both.val[0]))};
      const int16x8_t odd[2] = {vmovl_s8(vget_low_s8(both.val[1])), vmovl_s8(vget_high_s8(both.val[1]))};
      for (int r = 0; r < M; ++r) {
        const int16_t a = rows[r][c * 2], b = rows[r][c * 2 + 1];
        for (int i = 0; i < 2; ++i) {
          int32x4_t half[2];
          std::memcpy(half, &sums[r][n][i], sizeof half);
          half[0] = vmlal_n_s16(vmlal_n_s16(half[0], vget_low_s16(even[i]), a), vget_low_s16(odd[i]), b);
          half[1] = vmlal_n_s16(vmlal_n_s16(half[1], vget_high_s16(even[i]), a), vget_high_s16(odd[i]), b);
          std::memcpy(&sums[r][n][i], half, sizeof half);
        }
      }
    }
#else
    // In whole vectors: from the same in scalars GCC 12 makes loads of rows of x that are not there
    VI weights[N][kVectors][2];
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < kVectors; ++i) {
        int8_t __attribute__((vector_size(2 * kLanes))) both;
        std::memcpy(&both, at + n * panel + 2 * i * kLanes, sizeof both);
        weights[n][i][0] = __builtin_convertvector(__builtin_shufflevector(both, both, 0, 2, 4, 6, 8, 10, 12, 14), VI);
        weights[n][i][1] = __builtin_convertvector(__builtin_shufflevector(both, both, 1, 3, 5, 7, 9, 11, 13, 15), VI);
      }
    for (int r = 0; r < M; ++r) {
      const int32_t a = rows[r][c * 2], b = rows[r][c * 2 + 1];
      for (int n = 0; n < N; ++n)
        for (int i = 0; i < kVectors; ++i) sums[r][n][i] += a * weights[n][i][0] + b * weights[n][i][1];
    }
#endif
  }
  for (int r = 0; r < M; ++r)
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < kVectors; ++i) {
        const int live = n + 1 < N ? kLanes : tile.live - i * kLanes, at = n * kPanel + i * kLanes;
        float* to = y + static_cast<size_t>(r) * ldy + at;
        if (tile.last)
          put(to, __builtin_convertvector(sums[r][n][i], V) * splat(x_scales[r]) * load(scales + at) + load(bias + at),
              live);
        else
          put(to, sums[r][n][i], live);
      }
}

// Room for the rounded activations of a product; one for each call of the engine.
struct Rounded {
  std::vector<int16_t> values;
  std::vector<float> scales;
};

// A product on its way: which rows with which panels are computed together
class Product {
 public:
  Product(const Matrix& w, const float* x, int ldx, int m, float* y, int ldy, Rounded& rounded)
      : w_(w), x_(x), ldx_(ldx), m_(m), y_(y), ldy_(ldy), rounded_(rounded), int8_(w.int8()), pairs_((w.cols + 1) / 2) {
    if (int8_) {
      rounded.values.resize(static_cast<size_t>(m) * pairs_ * 2);
      rounded.scales.resize(m);
      for (int r = 0; r < m; ++r)
        rounded.scales[r] = quantize_row(x + static_cast<size_t>(r) * ldx, w.cols,
                                         &rounded.values[static_cast<size_t>(r) * pairs_ * 2]);
    }
    // Rows: as many as stay in the second cache. Tiles of about the same height.
    const int depth = int8_ ? pairs_ : w.cols;
    chunk_ = m <= kTileRows ? m : std::max(8 * kTileRows, kRowsCached / std::max(depth, 1));
    // Columns: so many that the panels of a tile stay in the first cache from one tile to the next
    const int turns = m <= kTileRows ? 1 : (depth + kDeepest - 1) / kDeepest;
    turn_ = std::max(1, (depth + turns - 1) / std::max(turns, 1));
    together_ = tile_panels(std::min(m, kTileRows));
    depth_ = depth;
  }
  int groups() const { return (w_.panels() + together_ - 1) / together_; }

  // A group of panels with all rows of a chunk
  void compute(int first_row, int group) {
    const int end_row = std::min(m_, first_row + chunk_), begin = group * together_;
    const int end = std::min(w_.panels(), begin + together_);
    const int tiles = (end_row - first_row + kTileRows - 1) / kTileRows;
    for (int c = 0; c == 0 || c < depth_; c += turn_)
      for (int t = 0, r = first_row; t < tiles; ++t) {
        const int height = (end_row - r + (tiles - t) - 1) / (tiles - t);
        rows<kTileRows>(height, r, begin, end, c, ahead(begin, c, t, tiles));
        r += height;
      }
  }
  int chunk() const { return chunk_; }

 private:
  static constexpr int kRowsCached = 1 << 17, kDeepest = 192;
  const Matrix& w_;
  const float* x_;
  const int ldx_, m_;
  float* y_;
  const int ldy_;
  const Rounded& rounded_;
  const bool int8_;
  const int pairs_;
  int chunk_, turn_, together_, depth_;

  // What one of several tiles fetches of the next turn's weights, which its first tile would wait for. (Where there is
  // only one, every tile does: the processor's own prefetching is better at that.)
  Ahead ahead(int begin, int c, int t, int tiles) const {
    if (tiles == 1) return {};
    const bool ends = c + turn_ >= depth_;
    const int first = t * together_ / tiles, last = std::max(first, (t + 1) * together_ / tiles - 1);
    const auto at = [&](int panel) {  // behind the last one, too: nothing is read there
      const size_t place = (static_cast<size_t>(panel) * depth_ + (ends ? 0 : c + turn_)) * kPanel;
      return int8_ ? reinterpret_cast<const char*>(w_.quantized.data() + place * 2)
                   : reinterpret_cast<const char*>(w_.weights.data() + place);
    };
    const int panel = ends ? begin + together_ : begin;
    return {{at(panel + first), at(panel + last)}};
  }

  template <int M>
  void rows(int height, int r, int begin, int end, int c, Ahead ahead) {
    if constexpr (M > 1) {
      if (height < M) return rows<M - 1>(height, r, begin, end, c, ahead);
    }
    constexpr int N = tile_panels(M);
    int p = begin;
    for (; p + N <= end; p += N) tile<M, N>(r, p, c, ahead);
    if constexpr (N > 1) {
      for (; p < end; ++p) tile<M, 1>(r, p, c, ahead);
    }
  }

  template <int M, int N>
  void tile(int r, int p, int c, Ahead ahead) {
    const int end = std::min(depth_, c + turn_), live = std::min(kPanel, w_.rows - (p + N - 1) * kPanel);
    const Tile tile{c, end, c == 0, end == depth_, live, ahead};
    float* y = y_ + static_cast<size_t>(r) * ldy_ + p * kPanel;
    const float* bias = &w_.bias[static_cast<size_t>(p) * kPanel];
    if (int8_) {
      const size_t panel = static_cast<size_t>(pairs_) * 2 * kPanel;
      int8_tile<M, N>(&rounded_.values[static_cast<size_t>(r) * pairs_ * 2], pairs_ * 2, &rounded_.scales[r],
                      w_.quantized.data() + p * panel, panel, &w_.scales[static_cast<size_t>(p) * kPanel], bias, y,
                      ldy_, tile);
    } else {
      const size_t panel = static_cast<size_t>(w_.cols) * kPanel;
      float_tile<M, N>(x_ + static_cast<size_t>(r) * ldx_, ldx_, w_.weights.data() + p * panel, panel, bias, y, ldy_,
                       tile);
    }
  }
};

// m rows of x (ldx apart) -> m rows of y (ldy apart): y = x W^T + b
inline void product(const Matrix& w, const float* x, int ldx, int m, float* y, int ldy, int threads, Rounded& rounded) {
  Product product(w, x, ldx, m, y, ldy, rounded);
  const int groups = product.groups();
  // Below this many products waking the other threads costs more than they give
  const bool shared = threads > 1 && static_cast<int64_t>(m) * w.rows * w.cols >= 65536;
  for (int r = 0; r < m; r += product.chunk()) {
    if (!shared) {
      for (int g = 0; g < groups; ++g) product.compute(r, g);
      continue;
    }
#pragma omp parallel for schedule(static) num_threads(std::min(threads, groups))
    for (int g = 0; g < groups; ++g) product.compute(r, g);
  }
}

}  // namespace tg
