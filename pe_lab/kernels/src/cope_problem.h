// The arguments from pe_lab/kernels/cope.py, and helpers of both passes.
//
// Softmax and gates use powers of two: queries are scaled by log2(e) / sqrt(D), and all logits here
// are to the base 2.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "blocks.h"
#include "dropout.h"
#include "multiply.h"
#include "parallel.h"
#include "softmax.h"

struct Cope {
  Fork fork;
  int64_t threads, batch, heads, queries, keys, width, positions;
  int64_t parts;   // of a head's blocks of queries, so that threads can share a head
  int64_t chunks;  // of all parts of all heads; each sums a gradient of the table
  double softmax_scale, position_scale;
  Dropout drop;
  Strided q, k, v;
  Strided gate_q, gate_k;  // null: q, k
  Strided table;           // (positions, width)
  Strided out;
  void* log_sum;  // (batch, heads, queries): log2 of the sum of 2^logits
  // Gradients of keys have room for each part, those of the table for each chunk.
  Strided grad_out, grad_q, grad_k, grad_v, grad_gate_q, grad_gate_k, grad_table;

  bool separate_gates() const { return gate_q.data != nullptr || gate_k.data != nullptr; }
  double query_scale() const { return softmax_scale * LOG2_E; }
  // Scaled queries times a scaled table are scores to the base 2.
  double table_scale() const { return position_scale / softmax_scale; }
};

constexpr double LN_2 = 0.6931471805599453;
// Queries of a block. Its logits have one row of ROWS numbers for each key: lanes are queries.
constexpr long ROWS = 32;

// Copy rows to a block, padded with zeros to whole vectors and to ROWS rows.
template <class T>
void take_rows(const Strided& from, long b, long h, long first, long count, long width,
               double factor, T* rows) {
  const long stride = round_up(width, Lanes<T>::count);
  copy_rows(from.row<T>(b, h, first), from.token, count, width, T(factor), rows, stride);
  std::fill(rows + count * stride, rows + ROWS * stride, T(0));
}

// The queries of a block (or their output gradients) as rows and as columns.
template <class T>
struct Block {
  static constexpr long N = Lanes<T>::count;
  const long stride;
  Scratch<T> rows, columns;

  explicit Block(long width)
      : stride(round_up(width, N)), rows(ROWS * stride), columns(ROWS * stride) {}

  void take(const Strided& from, long b, long h, long first, long count, long width,
            double factor) {
    take_rows(from, b, h, first, count, width, factor, rows + 0);
    for (long r = 0; r < ROWS; r += N)
      for (long d = 0; d < stride; d += N) {
        Vector<T> square[N];
        for (int n = 0; n < N; ++n) square[n] = load(rows + (r + n) * stride + d);
        transpose<T>(square);
        for (int n = 0; n < N; ++n) store(columns + (d + n) * ROWS + r, square[n]);
      }
  }
};

// Store rows of ``stride`` numbers, times a factor, to rows of a tensor.
template <class T>
void store_rows(const T* from, long stride, const Strided& to, long b, long h, long first,
                long count, long part, long width, double factor) {
  for (long i = 0; i < count; ++i) {
    T* const row = to.row<T>(b, h, first + i, part);
    prefetch_to_write(row + AHEAD * to.token, width);
    for (long d = 0; d < width; ++d) row[d] = from[i * stride + d] * T(factor);
  }
}
