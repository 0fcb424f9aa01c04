// Vectors of floats, and elementwise functions of them.
//
// These are the compiler's portable vectors, which become whatever registers the target has. The library is built once
// for every instruction set worth its own (setup.py); beside the int8 product little asks which it is.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace tg {

#define TG_INLINE inline __attribute__((always_inline))

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float V __attribute__((vector_size(4 * kLanes)));
typedef int32_t VI __attribute__((vector_size(4 * kLanes)));

TG_INLINE V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
TG_INLINE void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
#ifdef __AVX512F__
TG_INLINE V splat(float x) { return V{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
TG_INLINE float sum(V v) {
  auto half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  auto quarter = __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}
#else
TG_INLINE V splat(float x) { return V{x, x, x, x, x, x, x, x}; }
TG_INLINE float sum(V v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }
#endif

// Whether a comparison holds for any of its lanes
TG_INLINE bool any(VI mask) {
  int64_t parts[sizeof mask / 8], either = 0;
  std::memcpy(parts, &mask, sizeof mask);
  for (int64_t part : parts) either |= part;
  return either != 0;
}

TG_INLINE V exp(V x) {
  // 2^n * e^r with |r| <= ln(2)/2; a polynomial of degree 6 for e^r, to the last bit or two
  x = x < splat(-87.f) ? splat(-87.f) : x;
  x = x > splat(88.f) ? splat(88.f) : x;
  const V magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  V n = x * splat(1.44269504f) + magic;
  VI whole = reinterpret_cast<VI>(n) - reinterpret_cast<VI>(magic);
  n -= magic;
  V r = x - n * splat(0.693359375f) + n * splat(2.12194440e-4f);
  V p = splat(1.f / 720) * r + splat(1.f / 120);
  p = p * r + splat(1.f / 24);
  p = p * r + splat(1.f / 6);
  p = p * r + splat(0.5f);
  p = p * r * r + r + splat(1.f);
  return reinterpret_cast<V>(reinterpret_cast<VI>(p) + (whole << 23));
}
TG_INLINE V sigmoid(V x) { return splat(1.f) / (splat(1.f) + exp(-x)); }
TG_INLINE V tanh(V x) { return splat(1.f) - splat(2.f) / (exp(x + x) + splat(1.f)); }

// f over n floats of y; with a second argument, over those of x too
template <class F>
TG_INLINE void map(float* y, int n, F f) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(y + i)));
  if (i < n) {
    V v{};
    std::memcpy(&v, y + i, (n - i) * sizeof(float));
    v = f(v);
    std::memcpy(y + i, &v, (n - i) * sizeof(float));
  }
}
template <class F>
TG_INLINE void map(float* y, const float* x, int n, F f) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(y + i), load(x + i)));
  if (i < n) {
    V v{}, u{};
    std::memcpy(&v, y + i, (n - i) * sizeof(float));
    std::memcpy(&u, x + i, (n - i) * sizeof(float));
    v = f(v, u);
    std::memcpy(y + i, &v, (n - i) * sizeof(float));
  }
}
inline void add(float* y, const float* x, int n) {
  map(y, x, n, [](V a, V b) { return a + b; });
}

}  // namespace tg
