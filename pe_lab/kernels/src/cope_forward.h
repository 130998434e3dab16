#pragma once

#include "cope_head.h"

// The forward pass of one head, block by block of queries.
template <class T>
class CopeForward {
  static constexpr long N = Lanes<T>::count;
  Head<T> head_;
  Scratch<T> out_, sum_{ROWS}, largest_{ROWS};

 public:
  CopeForward(const Cope& p, const T* table) : head_(p, table), out_(ROWS * head_.stride) {}

  void run(long task) {
    head_.enter(task);
    head_.blocks([&](long first, long count) { queries(first, count); });
  }

 private:
  void queries(long first, long count) {
    const VisibleKeys<T> seen = head_.enter_queries(first, count);
    for (long lane = 0; lane < ROWS; lane += N) weigh(seen, lane);
    std::fill_n(out_ + 0, ROWS * head_.stride, T(0));
    seen.gather(head_.logits, head_.v, head_.stride, out_);
    const Cope& p = head_.p;
    for (long i = 0; i < count; ++i) {
      store_rows(out_ + i * head_.stride, head_.stride, p.out, head_.b, head_.h, first + i, 1, 0,
                 p.width, p.drop.scale / sum_[i]);
      head_.log_sum(first + i) = largest_[i] + std::log2(sum_[i]);
    }
  }

  // Replaces the logits of a vector of queries by dropped weights, not yet divided by their sum.
  void weigh(const VisibleKeys<T>& seen, long lane) {
    T* const x = head_.logits + lane;
    const Vector<T> largest = add_scores(x, seen.seen(lane), lane);
    const Dropout drop = head_.p.drop;
    const Hashes<T> hashed = head_.hashed(seen, lane);
    Vector<T> sum = {};
    for (long key = 0; key < seen.seen(lane); ++key) {
      Vector<T> weight = softmax_weight<T>(load(x + key * ROWS) - largest);
      sum += weight;
      if (drop.threshold != 0)
        weight = kept<T>(drop, hashed, static_cast<uint32_t>(key)) ? weight : Vector<T>{};
      store(x + key * ROWS, weight);
    }
    store(sum_ + lane, sum);
    store(largest_ + lane, largest);
  }

  // Adds the scores at the positions to the logits of a vector of queries; returns the largest.
  Vector<T> add_scores(T* x, long keys, long lane) {
    const T* const gates = head_.gate_logits() + lane;
    Vector<T> largest = all<T>(std::numeric_limits<T>::lowest());
    Positions<T> positions(lane, head_.scores);
    Around<T> score(head_.scores.at, lane);
    long key = keys - 1;
    while (key >= 0 && !positions.all_last()) {
      const long count = std::min(key + 1, positions.MOST);
      positions.enter_keys(gates + key * ROWS, count, head_.scores);
      for (long n = 0; n < count; ++n, --key) {
        Integers<T> stays;
        const Vector<T> logit = load(x + key * ROWS) + score.enter_key(positions, n, stays);
        largest = larger<T>(logit, largest);
        store(x + key * ROWS, logit);
      }
    }
    // When every query has reached the last position, the rest is ordinary attention.
    for (; key >= 0; --key) {
      const Vector<T> logit = load(x + key * ROWS) + score.below;
      largest = larger<T>(logit, largest);
      store(x + key * ROWS, logit);
    }
    return largest;
  }
};
