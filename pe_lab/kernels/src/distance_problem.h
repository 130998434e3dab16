// The arguments from pe_lab/kernels/distance.py, and one head of both passes.
#pragma once

#include "blocks.h"
#include "causal.h"
#include "dropout.h"
#include "parallel.h"
#include "softmax.h"

struct Distance {
  Fork fork;
  int64_t threads, batch, heads, queries, keys, width;
  int64_t parts;  // of a head's blocks, so that threads can share a head
  double softmax_scale;
  Dropout drop;
  Strided q, k, v, out;
  void *largest, *sum;  // (batch, heads, queries): of the logits / ln 2; of 2^(that - largest)
  const void* bias;     // (heads, keys), by distance; null: none
  const void* kept;     // distance_kept.h, (batch, heads, keys); null: none
  // Several parts of a head may add to one query: grad_q has room for each part, and grad_bias is
  // (parts, batch, heads, keys).
  Strided grad_out, grad_q, grad_k, grad_v;
  void *grad_bias, *grad_kept;
  // distance_carried.h; null: none. The first query is the first token of a chunk.
  const void *products;  // (batch, heads, chunks, width, width)
  const void *diagonal;  // (batch, heads, queries, CHUNK)
  void *grad_products;   // (parts, batch, heads, chunks, width, width)
  void *grad_diagonal;   // (batch, heads, queries, CHUNK)
};

// One head of one sequence: its keys and values, and the current block of queries. Logits are to
// the base 2, for which a power is cheaper: queries and bias are divided by ln 2.
template <class T>
struct Head {
  static constexpr long N = Lanes<T>::count;
  const Distance& p;
  const long stride;  // of a row of keys, padded to whole vectors
  const long offset;  // index of the first query among the keys
  long b = 0, h = 0;
  Scratch<T> k, v, bias, query_columns;
  Scratch<uint32_t> hashed;

  explicit Head(const Distance& p)
      : p(p),
        stride(round_up(p.width, N)),
        offset(p.keys - p.queries),
        k(p.keys * stride),
        v(p.keys * stride),
        bias(p.keys + 2 * BLOCK),
        query_columns(p.width * BLOCK),
        hashed(BLOCK) {}

  void enter(long head) {
    b = head / p.heads;
    h = head % p.heads;
    copy_rows(p.k.row<T>(b, h, 0), p.k.token, p.keys, p.width, T(1), k + 0, stride);
    copy_rows(p.v.row<T>(b, h, 0), p.v.token, p.keys, p.width, T(1), v + 0, stride);
    // Masked and padding lanes read beyond both ends.
    std::fill_n(bias + 0, p.keys + 2 * BLOCK, T(0));
    if (p.bias != nullptr)
      copy_row(static_cast<const T*>(p.bias) + h * p.keys, p.keys, T(LOG2_E), bias + BLOCK);
  }

  long count(long query) const { return std::min<long>(BLOCK, p.queries - query); }

  struct Rows {
    const T* first;
    long stride;
  };

  Rows enter_queries(long query) {
    const Rows rows{p.q.row<T>(b, h, query), p.q.token};
    copy_transposed(rows.first, rows.stride, count(query), p.width, T(p.softmax_scale * LOG2_E),
                    query_columns + 0, BLOCK);
    const uint32_t row = (b * p.heads + h) * p.keys + offset + query;
    for (uint32_t i = 0; i < BLOCK; ++i) hashed[i] = hashed_rows<uint32_t>(p.drop, row + i);
    return rows;
  }

  // The index of a query among those of all heads.
  long at(long query) const { return (b * p.heads + h) * p.queries + query; }

  Vector<T> bias_of(const BlockPair<T>& pair, long vector, long key) const {
    return load(bias + BLOCK + pair.ahead + vector * N - key);
  }

  Integers<T> kept_of(long vector, long key) const {
    Hashes<T> hashes;
    __builtin_memcpy(&hashes, hashed + vector * N, sizeof hashes);
    return kept<T>(p.drop, hashes, static_cast<uint32_t>(key));
  }
};

// Every head of every sequence by a pass, forward or backward.
template <class Pass>
int in_every_head(const Distance& p) {
  const auto worker = [&](Tasks& tasks) {
    Pass pass(p);
    for (long task; (task = tasks.next()) >= 0;) pass.head(task / p.parts, task % p.parts);
  };
  const Pool pool{p.fork, static_cast<int>(p.threads)};
  return in_parallel(pool, p.batch * p.heads * p.parts, worker) ? 0 : 1;
}
