#pragma once

#include "distance_problem.h"
#include "distance_carried.h"
#include "distance_kept.h"

// Online softmax (Milakov & Gimelshein 2018): for each block of queries, blocks of keys update the
// running maximum and sum, and the output is rescaled where the maximum grows.
template <class T>
class DistanceForward {
  static constexpr long N = Lanes<T>::count;
  const Distance& p_;
  Head<T> head_;
  Kept<T> kept_;
  Carried<T> carried_;
  typename Head<T>::Rows queries_{};
  Scratch<T> weights_{BLOCK * BLOCK}, largest_{BLOCK}, sum_{BLOCK}, rescale_{BLOCK}, out_;

 public:
  explicit DistanceForward(const Distance& p)
      : p_(p),
        head_(p),
        kept_(p, head_),
        carried_(p, head_, false),
        out_(BLOCK * head_.stride) {}

  void head(long number, long part) {
    enter(number);
    for (long query = part * BLOCK; query < p_.queries; query += p_.parts * BLOCK) queries(query);
  }

 private:
  void enter(long number) {
    head_.enter(number);
    kept_.enter();
    if (carried_.there()) carried_.enter(false);
  }

  void enter_queries(long query) {
    queries_ = head_.enter_queries(query);
    if (carried_.there()) carried_.enter_queries(query, queries_.first, queries_.stride);
    // Not minus infinity: a difference of infinities would be NaN.
    std::fill_n(largest_ + 0, BLOCK, std::numeric_limits<T>::lowest());
    std::fill_n(sum_ + 0, BLOCK, T(0));
    std::fill_n(out_ + 0, BLOCK * head_.stride, T(0));
  }

  // The logits of a block, to the base 2, without the bias by distance.
  void compare(const BlockPair<T>& pair, long query, long key) {
    if (carried_.there())
      carried_.compare(pair, query, key, weights_);
    else
      pair.compare(head_.k + key * head_.stride, p_.width, head_.stride, head_.query_columns,
                   weights_);
    kept_.add(pair, query, key, weights_);
  }

  // What they add to the output.
  void average(const BlockPair<T>& pair, long key) {
    if (weigh(pair, key)) rescale(pair.queries);
    pair.gather(weights_, head_.v + key * head_.stride, head_.stride, out_);
  }

  void finish(long query) {
    const long count = head_.count(query);
    for (long i = 0; i < count; ++i)
      copy_row(out_ + i * head_.stride, p_.width, T(p_.drop.scale) / sum_[i],
               p_.out.template row<T>(head_.b, head_.h, query + i));
    std::copy_n(largest_ + 0, count, static_cast<T*>(p_.largest) + head_.at(query));
    std::copy_n(sum_ + 0, count, static_cast<T*>(p_.sum) + head_.at(query));
  }

  void queries(long query) {
    const long count = head_.count(query), index = head_.offset + query;
    enter_queries(query);
    for (long key = 0; key < index + count; key += BLOCK) {
      const BlockPair<T> pair(index, count, key, p_.keys);
      compare(pair, query, key);
      average(pair, key);
    }
    finish(query);
  }

  // Replaces products by weights, not yet divided by their sum. Returns true if a maximum grew.
  bool weigh(const BlockPair<T>& pair, long first_key) {
    Integers<T> grown = {};
    for (long vector = 0; vector < BLOCK / N; ++vector) {
      T* const x = weights_ + vector * N;
      const long visible = pair.visible(vector), to_all = pair.visible_to_all(vector);
      const Vector<T> before = load(largest_ + vector * N);
      Vector<T> largest = before;
      for (long key = 0; key < visible; ++key) {
        Vector<T> logit = load(x + key * BLOCK) + head_.bias_of(pair, vector, key);
        if (key >= to_all) logit = pair.masked(vector, key) ? all<T>(-INFINITY) : logit;
        largest = larger<T>(logit, largest);
        store(x + key * BLOCK, logit);
      }
      const Vector<T> rescale = softmax_weight<T>(before - largest);
      Vector<T> sum = load(sum_ + vector * N) * rescale;
      for (long key = 0; key < visible; ++key) {
        Vector<T> weight = softmax_weight<T>(load(x + key * BLOCK) - largest);
        sum += weight;
        if (p_.drop.threshold != 0)
          weight = head_.kept_of(vector, first_key + key) ? weight : Vector<T>{};
        store(x + key * BLOCK, weight);
      }
      store(largest_ + vector * N, largest);
      store(sum_ + vector * N, sum);
      store(rescale_ + vector * N, rescale);
      grown |= largest > before;
    }
    return any<T>(grown);
  }

  void rescale(long count) {
    for (long query = 0; query < count; ++query) {
      T* const row = out_ + query * head_.stride;
      if (rescale_[query] != 1) copy_row(row, head_.stride, rescale_[query], row);
    }
  }
};
