#pragma once

#include "distance_problem.h"
#include "distance_carried.h"
#include "distance_kept.h"

// Sums the gradients of a bias by distance. Neighbouring lanes are neighbouring queries, so a
// vector holds neighbouring distances; keys are distributed over as many tables as a vector has
// lanes, so that vectors are aligned within a table.
template <class T>
class Distances {
  static constexpr long N = Lanes<T>::count;
  const long keys_, vectors_;
  Scratch<T> tables_;

 public:
  explicit Distances(long keys)
      : keys_(keys), vectors_((keys + BLOCK) / N + 3), tables_(N * vectors_ * N) {}

  void clear() { std::fill_n(tables_ + 0, N * vectors_ * N, T(0)); }

  // index: of the first lane's query, minus the offset of all queries modulo N.
  void add(long index, long key, Vector<T> gradient) {
    T* const to = tables_ + ((key % N) * vectors_ + index / N - key / N + 2) * N;
    store(to, load(to) + gradient);
  }

  // shift: the queries' offset modulo N.
  void sum(long shift, T* to) const {
    std::fill_n(to, keys_, T(0));
    for (long table = 0; table < N; ++table)
      for (long i = 0; i < vectors_ * N; ++i) {
        const long distance = i - 2 * N + shift - table;
        if (distance >= 0 && distance < keys_) to[distance] += tables_[table * vectors_ * N + i];
      }
  }
};

// Recomputes the weights w = 2^(logits - largest) / sum; with dropout's mask m, 0 or 1 / (1 - p):
//   grad v_j = sum over i of m w grad_out_i
//   grad logits = w (m grad_out_i . v_j - out_i . grad_out_i)
// Only the powers are computed: grad_out is divided by the sum instead.
template <class T>
class DistanceBackward {
  static constexpr long N = Lanes<T>::count;
  const Distance& p_;
  Head<T> head_;
  Kept<T> kept_;
  Carried<T> carried_;
  typename Head<T>::Rows queries_{};
  Scratch<T> weights_{BLOCK * BLOCK}, slopes_{BLOCK * BLOCK}, largest_{BLOCK}, through_sum_{BLOCK};
  Scratch<T> query_rows_, grad_out_rows_, grad_out_columns_, grad_q_, grad_k_, grad_v_;
  Distances<T> grad_bias_;

 public:
  explicit DistanceBackward(const Distance& p)
      : p_(p),
        head_(p),
        kept_(p, head_),
        carried_(p, head_, true),
        query_rows_(BLOCK * head_.stride),
        grad_out_rows_(BLOCK * head_.stride),
        grad_out_columns_(p.width * BLOCK),
        grad_q_(BLOCK * head_.stride),
        grad_k_(p.keys * head_.stride),
        grad_v_(p.keys * head_.stride),
        grad_bias_(p.grad_bias != nullptr ? p.keys : 0) {}

  void head(long number, long part) {
    enter(number);
    for (long query = 0; query < p_.queries; query += BLOCK) queries(query, part);
    finish(number, part);
  }

 private:
  void enter(long number) {
    head_.enter(number);
    kept_.enter();
    if (carried_.there()) carried_.enter(true);
    std::fill_n(grad_k_ + 0, p_.keys * head_.stride, T(0));
    std::fill_n(grad_v_ + 0, p_.keys * head_.stride, T(0));
    grad_bias_.clear();
  }

  void enter_queries(long query) {
    load_queries(query, head_.count(query));
    std::fill_n(grad_q_ + 0, BLOCK * head_.stride, T(0));
    if (carried_.there()) carried_.clear_gradients(query);
  }

  // The logits of a block, to the base 2, without the bias by distance.
  void compare(const BlockPair<T>& pair, long query, long key) {
    const long stride = head_.stride;
    if (carried_.there())
      carried_.compare(pair, query, key, weights_);
    else
      pair.compare(head_.k + key * stride, p_.width, stride, head_.query_columns, weights_);
    kept_.add(pair, query, key, weights_);
  }

  // Replaces them by dropped weights, and computes the gradients of the logits.
  void differentiate(const BlockPair<T>& pair, long query, long key) {
    const long stride = head_.stride;
    pair.compare(head_.v + key * stride, p_.width, stride, grad_out_columns_, slopes_);
    for (long vector = 0; vector < BLOCK / N; ++vector) differentiate(pair, query, key, vector);
  }

  // What both give to the gradients.
  void accumulate(const BlockPair<T>& pair, long query, long key) {
    const long stride = head_.stride;
    pair.scatter(weights_, grad_out_rows_, stride, grad_v_ + key * stride);
    if (carried_.there()) {
      carried_.differentiate(pair, query, key, slopes_, grad_k_);
    } else {
      pair.scatter(slopes_, query_rows_, stride, grad_k_ + key * stride);
      pair.gather(slopes_, head_.k + key * stride, stride, grad_q_);
    }
    kept_.differentiate(pair, key, slopes_);
  }

  void finish_queries(long query, long part) {
    if (carried_.there()) carried_.finish(query, grad_q_);
    write(p_.grad_q, query, head_.count(query), part, T(p_.softmax_scale), grad_q_ + 0);
  }

  void finish(long number, long part) {
    for (long key = part * BLOCK; key < p_.keys; key += p_.parts * BLOCK) write_keys(key);
    kept_.write(part);
    carried_.write(part);
    if (p_.grad_bias != nullptr)
      grad_bias_.sum(head_.offset % N, static_cast<T*>(p_.grad_bias) +
                                           (part * p_.batch * p_.heads + number) * p_.keys);
  }

  void queries(long query, long part) {
    const long count = head_.count(query), index = head_.offset + query;
    enter_queries(query);
    for (long key = part * BLOCK; key < index + count; key += p_.parts * BLOCK) {
      const BlockPair<T> pair(index, count, key, p_.keys);
      compare(pair, query, key);
      differentiate(pair, query, key);
      accumulate(pair, query, key);
    }
    finish_queries(query, part);
  }

  void load_queries(long query, long count) {
    const auto rows = queries_ = head_.enter_queries(query);
    if (carried_.there()) carried_.enter_queries(query, rows.first, rows.stride);
    const long stride = head_.stride;
    const Strided& grad_out = p_.grad_out;
    copy_rows(rows.first, rows.stride, count, p_.width, T(p_.softmax_scale), query_rows_ + 0,
              stride);
    // Padding lanes have weight zero.
    std::fill_n(largest_ + 0, BLOCK, T(INFINITY));
    std::fill_n(through_sum_ + 0, BLOCK, T(0));
    std::copy_n(static_cast<const T*>(p_.largest) + head_.at(query), count, largest_ + 0);
    for (long i = 0; i < count; ++i) {
      const T* const grad = grad_out.template row<T>(head_.b, head_.h, query + i);
      const T* const out = p_.out.template row<T>(head_.b, head_.h, query + i);
      const T share = 1 / static_cast<const T*>(p_.sum)[head_.at(query) + i];
      through_sum_[i] = share * dot(out, grad, p_.width);
      copy_rows(grad, 0, 1, p_.width, T(p_.drop.scale) * share, grad_out_rows_ + i * stride,
                stride);
    }
    copy_transposed(grad_out_rows_ + 0, stride, count, p_.width, T(1), grad_out_columns_ + 0,
                    BLOCK);
  }

  // Products to dropped weights (without 1 / (1 - p)) and gradients of logits.
  void differentiate(const BlockPair<T>& pair, long first_query, long first_key, long vector) {
    T* const x = weights_ + vector * N;
    T* const slopes = slopes_ + vector * N;
    const long visible = pair.visible(vector), to_all = pair.visible_to_all(vector);
    const Vector<T> largest = load(largest_ + vector * N);
    const Vector<T> through_sum = load(through_sum_ + vector * N);
    const long aligned_index = first_query + vector * N + head_.offset / N * N;
    for (long key = 0; key < visible; ++key) {
      Vector<T> logit = load(x + key * BLOCK) + head_.bias_of(pair, vector, key);
      if (key >= to_all) logit = pair.masked(vector, key) ? all<T>(-INFINITY) : logit;
      const Vector<T> weight = softmax_weight<T>(logit - largest);
      Vector<T> dropped = weight, slope = load(slopes + key * BLOCK);
      if (p_.drop.threshold != 0) {
        const Integers<T> keep = head_.kept_of(vector, first_key + key);
        dropped = keep ? dropped : Vector<T>{};
        slope = keep ? slope : Vector<T>{};
      }
      slope = weight * (slope - through_sum);
      store(x + key * BLOCK, dropped);
      store(slopes + key * BLOCK, slope);
      if (p_.grad_bias != nullptr) grad_bias_.add(aligned_index, first_key + key, slope);
    }
    // Keys masked from all lanes are still summed over.
    for (long key = visible; key < pair.keys; ++key) {
      store(x + key * BLOCK, Vector<T>{});
      store(slopes + key * BLOCK, Vector<T>{});
    }
  }

  void write_keys(long first) {
    const long count = std::min(BLOCK, p_.keys - first), at = first * head_.stride;
    write(p_.grad_k, first, count, 0, T(1), grad_k_ + at);
    write(p_.grad_v, first, count, 0, T(1), grad_v_ + at);
  }

  // Store factor times rows, from token t on.
  void write(const Strided& to, long t, long count, long part, T factor, const T* rows) {
    T* const out = to.template row<T>(head_.b, head_.h, t, part);
    for (long r = 0; r < count; ++r)
      copy_row(rows + r * head_.stride, p_.width, factor, out + r * to.token);
  }
};
