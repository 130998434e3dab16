// Where a block of queries meets a block of keys in causal attention, and the products there.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "multiply.h"

constexpr long BLOCK = 64;  // queries, and keys, of a block

// Logits, weights and their gradients of a block lie transposed, a row of BLOCK queries for each
// key: lanes are queries, so what happens along a query's keys never crosses lanes.
template <class T>
struct Meeting {
  static constexpr long N = Lanes<T>::count;
  long queries;  // how many
  long keys;     // how many of them any query sees
  long ahead;    // the first query's place less the first key's

  Meeting(long query_place, long queries, long key, long all_keys)
      : queries(queries),
        keys(std::min({BLOCK, all_keys - key, query_place + queries - key})),
        ahead(query_place - key) {}

  // How many keys every lane of a vector of queries sees, and how many any lane sees.
  long seen_by_all(long vector) const { return std::clamp(ahead + vector * N + 1, 0L, keys); }
  long seen(long vector) const { return std::clamp(ahead + vector * N + N, 0L, keys); }
  bool full() const { return ahead + 1 >= keys; }

  // The lanes of a vector of queries that do not see a key.
  Integers<T> blind(long vector, long key) const {
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
      multiply<T>(count, stride, keys, weights + query, 1, BLOCK, rows, stride,
                  to + query * stride, stride, true);
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
  // f(key, count, query): no query before this one sees these keys.
  template <class F>
  void by_keys(const F& f) const {
    const long step = full() ? keys : N;
    for (long key = 0; key < keys; key += step)
      f(key, std::min(step, keys - key), std::max(0L, (key - ahead) / N * N));
  }

  // f(query, count, keys): these queries see no more than the first keys.
  template <class F>
  void by_queries(const F& f) const {
    const long step = full() ? queries : N;
    for (long query = 0; query < queries; query += step)
      f(query, std::min(step, queries - query), full() ? keys : seen(query / N));
  }
};
