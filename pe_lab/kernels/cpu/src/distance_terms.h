// Terms of the logits beyond q_i . k_j / sqrt(D) and a bias by distance:
//   kept_i - kept_j, of running sums;  bias[j, i], one for all sequences;
//   q_i . key[i - j] / sqrt(D);  k_j . query[i - j] / sqrt(D);
// and value[i - j], added to the values. The tables are by head and distance.
#pragma once

#include "distance_band.h"
#include "distance_problem.h"

template <class T>
class Terms {
  static constexpr long N = Lanes<T>::count;
  const Distance& p_;
  const Head<T>& head_;
  const bool bands_;
  Table<T> key_, query_, value_;
  Scratch<T> kept_;
  // Of the gradients. The sum for a key has a vector, lanes are summed up at the end.
  TableGradient<T> grad_key_, grad_query_, grad_value_;
  Scratch<T> grad_kept_;
  Band<T, false> by_query_;
  Band<T, true> by_key_;

 public:
  Terms(const Distance& p, const Head<T>& head)
      : p_(p),
        head_(head),
        bands_(p.key_table.data != nullptr || p.value_table.data != nullptr),
        key_(p.key_table, p.width, p.keys),
        query_(p.query_table, p.width, p.keys),
        value_(p.value_table, p.width, p.keys),
        kept_(p.kept != nullptr ? p.keys + 2 * BLOCK : 0),
        grad_key_(p.grad_key_table, p.width, p.keys),
        grad_query_(p.grad_query_table, p.width, p.keys),
        grad_value_(p.grad_value_table, p.width, p.keys),
        grad_kept_(p.grad_kept != nullptr ? p.keys * N : 0),
        by_query_(bands_),
        by_key_(p.query_table.data != nullptr) {}

  void enter() {
    const T scale = T(p_.softmax_scale);
    key_.enter(head_.h, T(1), scale * T(LOG2_E));
    query_.enter(head_.h, scale, scale * T(LOG2_E));
    value_.enter(head_.h, T(1), T(1));
    if (p_.kept != nullptr) {
      const T* const of_head =
          static_cast<const T*>(p_.kept) + (head_.b * p_.heads + head_.h) * p_.keys;
      copy_row(of_head, p_.keys, T(LOG2_E), kept_ + 0);
      std::fill_n(kept_ + p_.keys, 2 * BLOCK, T(0));
    }
    grad_key_.clear();
    grad_query_.clear();
    grad_value_.clear();
    if (p_.grad_kept != nullptr) std::fill_n(grad_kept_ + 0, p_.keys * N, T(0));
  }

  // Adds the terms to a block of logits, to the base 2. queries: rows of them, not scaled.
  void add(const BlockPair<T>& pair, long query, long key, const T* queries, long query_stride,
           T* x) {
    if (key_.there()) by_query_.add_products(pair, queries, query_stride, key_, x);
    if (query_.there())
      by_key_.add_products(pair, head_.k + key * head_.stride, head_.stride, query_, x);
    if (p_.kept != nullptr)
      each(pair, [&](long vector, long n, T* at) {
        const Vector<T> kept = load(kept_ + head_.offset + query + vector * N);
        store(at, load(at) + (kept - kept_[key + n]));
      }, x);
    if (p_.pairs != nullptr)
      each(pair, [&](long vector, long n, T* at) {
        const T* const bias = static_cast<const T*>(p_.pairs) + pair_index(query, key + n);
        store(at, load(at) + load(bias + vector * N) * T(LOG2_E));
      }, x);
  }

  // Adds weights[i - j] value[i - j] to the output.
  void add_values(const BlockPair<T>& pair, const T* weights, T* out) {
    if (!value_.there()) return;
    by_query_.enter(weights, [&](long vector) { return pair.visible(vector); });
    by_query_.times_table(pair, value_, out);
  }

  // Adds grad_out_i . value[i - j] to a block of slopes.
  void add_slopes(const BlockPair<T>& pair, const T* grad_out, T* slopes) {
    if (value_.there()) by_query_.add_products(pair, grad_out, head_.stride, value_, slopes);
  }

  // Adds to the gradients what a block gives to them. weights: after dropout; slopes: gradients of
  // the logits; queries: scaled by 1 / sqrt(D); rows of all are the head's.
  void differentiate(const BlockPair<T>& pair, long query, long key, const T* weights,
                     const T* slopes, const T* queries, const T* grad_out, T* grad_q, T* grad_k) {
    const auto all = [&](long) { return pair.keys; };
    if (key_.there()) {
      by_query_.enter(slopes, all);
      by_query_.times_table(pair, key_, grad_q);
      if (grad_key_.there()) by_query_.times_rows(pair, queries, grad_key_);
    }
    if (query_.there()) {
      by_key_.enter(slopes, all);
      by_key_.times_table(pair, query_, grad_k + key * head_.stride);
      if (grad_query_.there())
        by_key_.times_rows(pair, head_.k + key * head_.stride, grad_query_);
    }
    if (grad_value_.there()) {
      by_query_.enter(weights, all);
      by_query_.times_rows(pair, grad_out, grad_value_);
    }
    if (p_.grad_kept == nullptr && p_.grad_pairs == nullptr) return;
    for (long n = 0; n < pair.keys; ++n)
      for (long vector = 0; vector < BLOCK / N; ++vector) {
        const Vector<T> slope = load(slopes + n * BLOCK + vector * N);
        if (p_.grad_kept != nullptr) {
          T* const to = grad_kept_ + (key + n) * N;
          store(to, load(to) - slope);
        }
        if (p_.grad_pairs != nullptr) {
          T* const to =
              static_cast<T*>(p_.grad_pairs) + pair_index(query, key + n) + vector * N;
          store(to, load(to) + slope);
        }
      }
  }

  // part: writes the gradients of the keys of this part, and of the tables.
  void write(long part) const {
    grad_key_.write(head_.b, head_.h, part, T(1));
    grad_query_.write(head_.b, head_.h, part, T(p_.softmax_scale));
    grad_value_.write(head_.b, head_.h, part, T(1));
    if (p_.grad_kept == nullptr) return;
    T* const to = static_cast<T*>(p_.grad_kept) + (head_.b * p_.heads + head_.h) * p_.keys;
    for (long first = part * BLOCK; first < p_.keys; first += p_.parts * BLOCK)
      for (long key = first; key < std::min<long>(first + BLOCK, p_.keys); ++key)
        to[key] = sum<T>(load(grad_kept_ + key * N));
  }

 private:
  template <class F>
  void each(const BlockPair<T>& pair, const F& f, T* x) const {
    for (long vector = 0; vector < BLOCK / N; ++vector)
      for (long n = 0; n < pair.visible(vector); ++n) f(vector, n, x + n * BLOCK + vector * N);
  }

  // The index in the bias (H, S, queries rounded up to whole blocks).
  long pair_index(long query, long key) const {
    return (head_.h * p_.keys + key) * round_up(p_.queries, BLOCK) + query;
  }
};
