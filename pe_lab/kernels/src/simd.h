// Vectors of float or double by the vector extensions of gcc and clang, which compile to AVX-512,
// AVX2 or NEON.
#pragma once

#include <cstdint>
#include <utility>

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif

// Lanes<T>: the number of T in one vector, and vectors of as many integers of T's size (also masks,
// all ones or zero) and unsigned 32-bit hashes.
template <class T>
struct Lanes;

template <>
struct Lanes<float> {
  static constexpr int count = VECTOR_BYTES / 4;
  typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));
  typedef int32_t Integers __attribute__((vector_size(VECTOR_BYTES)));
  typedef uint32_t Hashes __attribute__((vector_size(VECTOR_BYTES)));
};

template <>
struct Lanes<double> {
  static constexpr int count = VECTOR_BYTES / 8;
  typedef double Vector __attribute__((vector_size(VECTOR_BYTES)));
  typedef int64_t Integers __attribute__((vector_size(VECTOR_BYTES)));
  typedef uint32_t Hashes __attribute__((vector_size(VECTOR_BYTES / 2)));
};

template <class T>
using Vector = typename Lanes<T>::Vector;
template <class T>
using Integers = typename Lanes<T>::Integers;
template <class T>
using Hashes = typename Lanes<T>::Hashes;

template <class T>
inline Vector<T> load(const T* from) {
  Vector<T> x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

template <class T>
inline void store(T* to, Vector<T> x) {
  __builtin_memcpy(to, &x, sizeof x);
}

template <class T>
inline Vector<T> all(T x) {
  return x - Vector<T>{};
}

// 0, 1, 2, ..
template <class T>
inline Integers<T> counting() {
  Integers<T> x;
  for (int lane = 0; lane < Lanes<T>::count; ++lane) x[lane] = lane;
  return x;
}

// y where x is NaN.
template <class T>
inline Vector<T> larger(Vector<T> x, Vector<T> y) {
  return x > y ? x : y;
}

template <class T>
inline bool any(Integers<T> x) {
  bool found = false;
  for (int lane = 0; lane < Lanes<T>::count; ++lane) found |= x[lane] != 0;
  return found;
}

template <class T>
inline T sum(Vector<T> x) {
  T total = 0;
  for (int lane = 0; lane < Lanes<T>::count; ++lane) total += x[lane];
  return total;
}

// Lane l of x where l does not have the bit ``step``, else lane l - step of y; with ``high``, lane
// l + step of x, else lane l of y.
template <class T, int step, bool high, int... lane>
inline Vector<T> interleaved(Vector<T> x, Vector<T> y, std::integer_sequence<int, lane...>) {
  constexpr int N = Lanes<T>::count;
#if defined(__clang__)
  return __builtin_shufflevector(
      x, y, (lane & step ? N + lane - (high ? 0 : step) : lane + (high ? step : 0))...);
#else
  return __builtin_shuffle(
      x, y,
      Integers<T>{(lane & step ? N + lane - (high ? 0 : step) : lane + (high ? step : 0))...});
#endif
}

// Transposes a square of vectors in registers (Eklundh 1972): single lanes are exchanged between
// neighbouring rows, then pairs, and so on.
template <class T, int step = 1>
inline void transpose(Vector<T> (&square)[Lanes<T>::count]) {
  constexpr int N = Lanes<T>::count;
  if constexpr (step < N) {
    constexpr auto lanes = std::make_integer_sequence<int, N>{};
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r) {
      if (r & step) continue;
      const Vector<T> x = square[r], y = square[r + step];
      square[r] = interleaved<T, step, false>(x, y, lanes);
      square[r + step] = interleaved<T, step, true>(x, y, lanes);
    }
    transpose<T, 2 * step>(square);
  }
}

// The layout of a floating-point number.
template <class T>
struct Exponent;

template <>
struct Exponent<float> {
  static constexpr int mantissa = 23, bias = 127;
  // Adding 1.5 * 2^mantissa leaves a number rounded to an integer, in the lowest bits.
  static constexpr float round = 12582912.0f;
};

template <>
struct Exponent<double> {
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double round = 6755399441055744.0;
};
