// Keys at the distance ``near`` and farther, which meet queries by rotations of their own (ReRoPE,
// Self-Extend), forward only. Both products are computed only in blocks with near and far keys.
#pragma once

#include "distance_problem.h"

template <class T>
class Far {
  static constexpr long N = Lanes<T>::count;
  const Distance& p_;
  const Head<T>& head_;
  const long stride_;
  // Keys, and the queries of a block by rows and columns; the far numbers of a block.
  Scratch<T> keys_, rows_, columns_, block_;

 public:
  Far(const Distance& p, const Head<T>& head)
      : p_(p),
        head_(head),
        stride_(head.stride),
        keys_(there() ? p.keys * stride_ : 0),
        rows_(there() ? BLOCK * stride_ : 0),
        columns_(there() ? p.width * BLOCK : 0),
        block_(there() ? BLOCK * BLOCK : 0) {}

  bool there() const { return p_.near > 0; }

  void enter() { rotated(p_.far_k, p_.k, 0, p_.keys, keys_); }

  void enter_queries(long query) {
    const long count = head_.count(query);
    rotated(p_.far_q, p_.q, query, count, rows_);
    copy_transposed(rows_ + 0, stride_, count, p_.width, T(p_.softmax_scale * LOG2_E), columns_ + 0,
                    BLOCK);
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
};
