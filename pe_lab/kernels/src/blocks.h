// Copies of blocks of rows to contiguous scratch memory, padded with zeros.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "simd.h"

// A tensor (parts, B, H, T, D), or (B, H, T, D), with its strides; the last dimension is
// contiguous.
struct Strided {
  void* data;
  int64_t part, batch, head, token;

  template <class T>
  T* row(long b, long h, long t, long p = 0) const {
    return static_cast<T*>(data) + p * part + b * batch + h * head + t * token;
  }
};

// Memory aligned for vectors, not initialised.
template <class T>
class Scratch {
 public:
  explicit Scratch(long count)
      : memory_(static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64)))) {}
  operator T*() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(T* memory) const { ::operator delete(memory, std::align_val_t(64)); }
  };
  std::unique_ptr<T, Free> memory_;
};

// The smallest multiple of ``unit`` that is at least ``count``.
inline long round_up(long count, long unit) { return (count + unit - 1) / unit * unit; }

// Rows of a head are far apart in memory, beyond the hardware prefetcher: they are prefetched this
// many rows before they are read or written.
constexpr long AHEAD = 12;

template <class T>
inline void prefetch_to_read(const T* row, long columns) {
  for (long c = 0; c < columns; c += 64 / sizeof(T)) __builtin_prefetch(row + c, 0);
}

template <class T>
inline void prefetch_to_write(const T* row, long columns) {
  for (long c = 0; c < columns; c += 64 / sizeof(T)) __builtin_prefetch(row + c, 1);
}

// to[c] = factor from[c]
template <class T>
inline void copy_row(const T* from, long columns, T factor, T* to) {
  constexpr long N = Lanes<T>::count;
  long c = 0;
  for (; c + N <= columns; c += N) store(to + c, load(from + c) * factor);
  for (; c < columns; ++c) to[c] = from[c] * factor;
}

template <class T>
inline T dot(const T* x, const T* y, long count) {
  constexpr long N = Lanes<T>::count;
  Vector<T> sums = {};
  long c = 0;
  for (; c + N <= count; c += N) sums += load(x + c) * load(y + c);
  T total = sum<T>(sums);
  for (; c < count; ++c) total += x[c] * y[c];
  return total;
}

// to[r, c] = factor from[r, c], rows of ``padded`` numbers, zero beyond ``columns``.
template <class T>
void copy_rows(const T* from, long stride, long rows, long columns, T factor, T* to, long padded) {
  for (long r = 0; r < rows; ++r) {
    prefetch_to_read(from + (r + AHEAD) * stride, columns);
    copy_row(from + r * stride, columns, factor, to + r * padded);
    for (long c = columns; c < padded; ++c) to[r * padded + c] = 0;
  }
}

// to[c, r] = factor from[r, c], rows of ``padded`` numbers, a multiple of the lanes, zero beyond
// ``rows``.
template <class T>
void copy_transposed(const T* from, long stride, long rows, long columns, T factor, T* to,
                     long padded) {
  constexpr long N = Lanes<T>::count;
  const long in_squares = columns / N * N;
  for (long r = 0; r < padded; r += N) {
    for (long c = 0; c < in_squares; c += N) {
      Vector<T> square[N];
      for (long i = 0; i < N; ++i)
        square[i] = r + i < rows ? load(from + (r + i) * stride + c) * factor : Vector<T>{};
      transpose<T>(square);
      for (long i = 0; i < N; ++i) store(to + (c + i) * padded + r, square[i]);
    }
    for (long c = in_squares; c < columns; ++c)
      for (long i = r; i < r + N; ++i)
        to[c * padded + i] = i < rows ? from[i * stride + c] * factor : 0;
  }
}
