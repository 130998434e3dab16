// A block of queries and a block of keys in causal attention, and their matrix products.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "multiply.h"

constexpr long BLOCK = 64;  // queries, and keys, of a block

// Logits, weights and their gradients of a block are stored transposed, a row of BLOCK queries for
// each key: lanes are queries, so reductions over the keys of a query never cross lanes.
template <class T>
struct BlockPair {
  static constexpr long N = Lanes<T>::count;
  long queries;  // number of queries
  long keys;     // number of keys visible to any query
  long ahead;    // index of the first query minus index of the first key

  BlockPair(long query_index, long queries, long key, long all_keys)
      : queries(queries),
        keys(std::min({BLOCK, all_keys - key, query_index + queries - key})),
        ahead(query_index - key) {}

  // The number of keys visible to all lanes of a vector of queries, and to any lane.
  long visible_to_all(long vector) const { return std::clamp(ahead + vector * N + 1, 0L, keys); }
  long visible(long vector) const { return std::clamp(ahead + vector * N + N, 0L, keys); }
  bool full() const { return ahead + 1 >= keys; }

  // The lanes of a vector of queries from which a key is masked.
  Integers<T> masked(long vector, long key) const {
    return counting<T>() < Integers<T>{} + static_cast<int>(key - ahead - vector * N);
  }

  // to[key, query] = rows[key] . columns[:, query], columns: rows of BLOCK queries.
  void compare(const T* rows, long width, long stride, const T* columns, T* to) const {
    by_keys([&](long key, long count, long query) {
      multiply<T>(count, BLOCK - query, width, rows + key * stride, stride, 1, columns + query,
                  BLOCK, to + key * BLOCK + query, BLOCK, false);
    });
  }

  // to[query] += sum over keys of weights[key, query] rows[key]; rows of ``stride`` numbers.
  void gather(const T* weights, const T* rows, long stride, T* to) const {
    by_queries([&](long query, long count, long keys) {
      multiply<T>(count, stride, keys, weights + query, 1, BLOCK, rows, stride, to + query * stride,
                  stride, true);
    });
  }

  // to[key] += sum over queries of weights[key, query] rows[query]
  void scatter(const T* weights, const T* rows, long stride, T* to) const {
    by_keys([&](long key, long count, long query) {
      multiply<T>(count, stride, queries - query, weights + key * BLOCK + query, BLOCK, 1,
                  rows + query * stride, stride, to + key * stride, stride, true);
    });
  }

 private:
  // f(key, count, query): these keys are masked from all queries before this one.
  template <class F>
  void by_keys(const F& f) const {
    const long step = full() ? keys : N;
    for (long key = 0; key < keys; key += step)
      f(key, std::min(step, keys - key), std::max(0L, (key - ahead) / N * N));
  }

  // f(query, count, keys): only the first keys are visible to these queries.
  template <class F>
  void by_queries(const F& f) const {
    const long step = full() ? queries : N;
    for (long query = 0; query < queries; query += step)
      f(query, std::min(step, queries - query), full() ? keys : visible(query / N));
  }
};
