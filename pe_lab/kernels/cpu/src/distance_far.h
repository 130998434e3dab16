// Keys at the distance ``near`` and farther, which meet queries by rotations of their own (ReRoPE,
// Self-Extend). Both products are computed only in blocks with near and far keys.
#pragma once

#include "distance_problem.h"

template <class T>
class Far {
  static constexpr long N = Lanes<T>::count;
  const Distance& p_;
  const Head<T>& head_;
  const long stride_;
  // Keys, and the queries of a block by rows and columns; the far numbers of a block; gradients.
  Scratch<T> keys_, rows_, columns_, block_, grad_q_, grad_k_;

 public:
  Far(const Distance& p, const Head<T>& head, bool backward)
      : p_(p),
        head_(head),
        stride_(head.stride),
        keys_(there() ? p.keys * stride_ : 0),
        rows_(there() ? BLOCK * stride_ : 0),
        columns_(there() ? p.width * BLOCK : 0),
        block_(there() ? BLOCK * BLOCK : 0),
        grad_q_(there() && backward ? BLOCK * stride_ : 0),
        grad_k_(there() && backward ? p.keys * stride_ : 0) {}

  bool there() const { return p_.near > 0; }

  void enter(bool backward) {
    rotated(p_.far_k, p_.k, 0, p_.keys, keys_);
    if (backward) std::fill_n(grad_k_ + 0, p_.keys * stride_, T(0));
  }

  void enter_queries(long query, bool backward) {
    const long count = head_.count(query);
    rotated(p_.far_q, p_.q, query, count, rows_);
    copy_transposed(rows_ + 0, stride_, count, p_.width, T(p_.softmax_scale * LOG2_E), columns_ + 0,
                    BLOCK);
    if (!backward) return;
    copy_row(rows_ + 0, count * stride_, T(p_.softmax_scale), rows_ + 0);
    std::fill_n(grad_q_ + 0, BLOCK * stride_, T(0));
  }

  // The logits of a block, to the base 2.
  void compare(const BlockPair<T>& pair, long key, T* x) const {
    if (some_near(pair))
      pair.compare(head_.k + key * stride_, p_.width, stride_, head_.query_columns, x);
    if (!some_far(pair)) return;
    T* const far = some_near(pair) ? block_ + 0 : x;
    pair.compare(keys_ + key * stride_, p_.width, stride_, columns_, far);
    if (far == x) return;
    for (long vector = 0; vector < BLOCK / N; ++vector)
      for (long n = 0; n < pair.visible(vector); ++n) {
        const long at = n * BLOCK + vector * N;
        store(x + at, near(pair, vector, n) ? load(x + at) : load(far + at));
      }
  }

  // queries: the near ones, scaled by 1 / sqrt(D). Leaves of the slopes those of near keys.
  void differentiate(const BlockPair<T>& pair, long key, T* slopes, const T* queries, T* grad_q,
                     T* grad_k) {
    T* far = slopes;
    if (some_near(pair)) {
      if (some_far(pair)) {
        far = block_;
        for (long vector = 0; vector < BLOCK / N; ++vector)
          for (long n = 0; n < pair.keys; ++n) {
            const long at = n * BLOCK + vector * N;
            const Vector<T> slope = load(slopes + at);
            const Integers<T> is_near = near(pair, vector, n);
            store(slopes + at, is_near ? slope : Vector<T>{});
            store(far + at, is_near ? Vector<T>{} : slope);
          }
      }
      pair.scatter(slopes, queries, stride_, grad_k + key * stride_);
      pair.gather(slopes, head_.k + key * stride_, stride_, grad_q);
    }
    if (!some_far(pair)) return;
    pair.scatter(far, rows_, stride_, grad_k_ + key * stride_);
    pair.gather(far, keys_ + key * stride_, stride_, grad_q_);
  }

  // Adds the gradient of far queries to that of near ones, both rotated back.
  void add_queries(long query, T* grad_q) const {
    add(p_.rotary_q, p_.far_q, query, head_.count(query), grad_q, grad_q_);
  }

  void add_keys(long key, long count, T* grad_k) const {
    add(p_.rotary_k, p_.far_k, key, count, grad_k, grad_k_ + key * stride_);
  }

 private:
  bool some_near(const BlockPair<T>& pair) const { return pair.ahead - (pair.keys - 1) < p_.near; }
  bool some_far(const BlockPair<T>& pair) const {
    return pair.ahead + pair.queries - 1 >= p_.near;
  }

  // The lanes of a vector of queries for which a key is near.
  Integers<T> near(const BlockPair<T>& pair, long vector, long key) const {
    return counting<T>() <
           Integers<T>{} + static_cast<int>(p_.near - pair.ahead - vector * N + key);
  }

  void rotated(const Rotary& rotary, const Strided& from, long t, long count, T* to) const {
    const T* const rows = from.row<T>(head_.b, head_.h, t);
    if (rotary.factors.data == nullptr || stride_ != p_.width)
      copy_rows(rows, from.token, count, p_.width, T(1), to, stride_);
    if (rotary.factors.data != nullptr)
      rotate_rows(rotary, head_.b, head_.h, t, false, T(1), count, p_.width, rows, from.token, to,
                  stride_);
  }

  void add(const Rotary& near, const Rotary& far, long t, long count, T* to, T* from) const {
    for (const auto& [rotary, rows] : {std::pair{&near, to}, std::pair{&far, from}})
      if (rotary->factors.data != nullptr)
        rotate_rows(*rotary, head_.b, head_.h, t, true, T(1), count, p_.width, rows, stride_, rows,
                    stride_);
    for (long i = 0; i < count * stride_; i += N) store(to + i, load(to + i) + load(from + i));
  }
};
