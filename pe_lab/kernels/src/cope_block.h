// A block of queries and the keys visible to it, and their matrix products.
#pragma once

#include "cope_problem.h"

template <class T>
struct VisibleKeys {
  static constexpr long N = Lanes<T>::count;
  const long place;  // index of the first query among the keys
  const long all_keys;

  // The number of keys visible to any query of the vector that starts at this lane.
  long seen(long lane) const { return std::min(place + lane + N, all_keys); }
  long seen() const { return seen(ROWS - N); }

  // Masks: sets logits of invisible keys so that weight and gate are zero.
  void mask(T* logits) const {
    for (long key = place + 1; key < seen(); ++key)
      std::fill_n(logits + key * ROWS, std::min(key - place, ROWS), T(-1e30));
  }

  // to[key, query] = rows[key] . columns[:, query]
  void compare(const T* rows, long stride, const T* columns, T* to) const {
    by_lanes([&](long key, long count, long lane) {
      multiply<T>(count, ROWS - lane, stride, rows + key * stride, stride, 1, columns + lane, ROWS,
                  to + key * ROWS + lane, ROWS, false);
    });
  }

  // to[key] += sum over queries of weights[key, query] rows[query]
  void scatter(const T* weights, const T* rows, long stride, T* to) const {
    by_lanes([&](long key, long count, long lane) {
      multiply<T>(count, stride, ROWS - lane, weights + key * ROWS + lane, ROWS, 1,
                  rows + lane * stride, stride, to + key * stride, stride, true);
    });
  }

  // to[query] += sum over keys of weights[key, query] rows[key]
  void gather(const T* weights, const T* rows, long stride, T* to) const {
    constexpr long STEP = 64;  // rows that fit into the first-level cache
    const long to_all = seen(0);
    for (long key = 0; key < to_all; key += STEP)
      multiply<T>(ROWS, stride, std::min(STEP, to_all - key), weights + key * ROWS, 1, ROWS,
                  rows + key * stride, stride, to, stride, true);
    for (long lane = N; lane < ROWS; lane += N)
      multiply<T>(N, stride, seen(lane) - to_all, weights + to_all * ROWS + lane, 1, ROWS,
                  rows + to_all * stride, stride, to + lane * stride, stride, true);
  }

 private:
  // f(key, count, lane): these keys are masked from all queries before this lane.
  template <class F>
  void by_lanes(const F& f) const {
    for (long lane = 0, key = 0; lane < ROWS; lane += N) {
      if (seen(lane) > key) f(key, seen(lane) - key, lane);
      key = seen(lane);
    }
  }
};
