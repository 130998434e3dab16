// Products of small matrices that fit into the cache, tiled in registers.
#pragma once

#include "simd.h"

// ROWS rows of VECTORS vectors of c = (add ? c : 0) + a b.
template <class T, int ROWS, int VECTORS>
inline void multiply_tile(long inner, const T* a, long a_row, long a_inner, const T* b,
                          long b_inner, T* c, long c_row, bool add) {
  constexpr int N = Lanes<T>::count;
  Vector<T> tile[ROWS][VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) tile[r][v] = add ? load(c + r * c_row + v * N) : Vector<T>{};
  for (long k = 0; k < inner; ++k) {
    Vector<T> b_k[VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) b_k[v] = load(b + k * b_inner + v * N);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) tile[r][v] += a[r * a_row + k * a_inner] * b_k[v];
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) store(c + r * c_row + v * N, tile[r][v]);
}

template <class T, int ROWS, int VECTORS>
inline void multiply_panel(long rows, long inner, const T* a, long a_row, long a_inner, const T* b,
                           long b_inner, T* c, long c_row, bool add) {
  long r = 0;
  for (; r + ROWS <= rows; r += ROWS)
    multiply_tile<T, ROWS, VECTORS>(inner, a + r * a_row, a_row, a_inner, b, b_inner, c + r * c_row,
                                    c_row, add);
  for (; r < rows; ++r)
    multiply_tile<T, 1, VECTORS>(inner, a + r * a_row, a_row, a_inner, b, b_inner, c + r * c_row,
                                 c_row, add);
}

// c[r, n] = (add ? c[r, n] : 0) + sum over k of a[r, k] b[k, n]
//
// a may have any layout: a[r, k] is at a + r a_row + k a_inner. Rows of b and c are contiguous,
// b_inner and c_row apart, and padded to whole vectors: columns is a multiple of the lanes.
template <class T>
void multiply(long rows, long columns, long inner, const T* a, long a_row, long a_inner, const T* b,
              long b_inner, T* c, long c_row, bool add) {
  constexpr int N = Lanes<T>::count;
  long n = 0;
  for (; n + 4 * N <= columns; n += 4 * N)
    multiply_panel<T, 4, 4>(rows, inner, a, a_row, a_inner, b + n, b_inner, c + n, c_row, add);
  for (; n + 2 * N <= columns; n += 2 * N)
    multiply_panel<T, 8, 2>(rows, inner, a, a_row, a_inner, b + n, b_inner, c + n, c_row, add);
  for (; n < columns; n += N)
    multiply_panel<T, 8, 1>(rows, inner, a, a_row, a_inner, b + n, b_inner, c + n, c_row, add);
}
