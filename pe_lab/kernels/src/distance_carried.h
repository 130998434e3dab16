// Queries that change on their way back to the keys (PaTH): past each chunk of tokens they are
// multiplied by a matrix (D, D) of that chunk. Logits of a query with the keys of its own chunk are
// arguments.
#pragma once

#include "distance_problem.h"

constexpr long CHUNK = 16;  // tokens; whole vectors, and a part of a block

template <class T>
class Carried {
  static constexpr long N = Lanes<T>::count;
  const Distance& p_;
  const Head<T>& head_;
  const long stride_, chunks_, square_;
  // Of each chunk: its matrix and the transposed one; the queries of a block as they meet its keys,
  // by rows and columns; and their gradients.
  Scratch<T> products_, transposed_, rows_, columns_, grads_, grad_products_;
  Scratch<T> square_block_;
  long own_ = 0;  // the chunk of the first query of the block

 public:
  Carried(const Distance& p, const Head<T>& head, bool backward)
      : p_(p),
        head_(head),
        stride_(round_up(p.width, N)),
        chunks_(there() ? (p.keys + CHUNK - 1) / CHUNK : 0),
        square_(p.width * stride_),
        products_(chunks_ * square_),
        transposed_(backward ? chunks_ * square_ : 0),
        rows_(chunks_ * BLOCK * stride_),
        columns_(chunks_ * BLOCK * p.width),
        grads_(backward ? chunks_ * BLOCK * stride_ : 0),
        grad_products_(backward ? chunks_ * square_ : 0),
        square_block_(CHUNK * CHUNK) {}

  bool there() const { return p_.products != nullptr; }

  void enter(bool backward) {
    const long width = p_.width;
    const T* const from = static_cast<const T*>(p_.products) + first_product(0);
    copy_rows(from, width, chunks_ * width, width, T(1), products_ + 0, stride_);
    if (!backward) return;
    std::fill_n(grad_products_ + 0, chunks_ * square_, T(0));
    std::fill_n(transposed_ + 0, chunks_ * square_, T(0));
    for (long n = 0; n < chunks_; ++n)
      for (long r = 0; r < width; ++r)
        for (long c = 0; c < width; ++c)
          transposed_[n * square_ + c * stride_ + r] = from[(n * width + r) * width + c];
  }

  void enter_queries(long query, const T* queries, long stride) {
    own_ = (head_.offset + query) / CHUNK;
    const long count = head_.count(query);
    for (long n = own_ + (count - 1) / CHUNK - 1; n >= 0; --n) {
      const long later = first_after(n + 1), first = first_after(n);
      if (later < count)
        multiply<T>(count - later, stride_, p_.width, rows(n + 1, later), stride_, 1,
                    products_ + (n + 1) * square_, stride_, rows(n, later), stride_, false);
      // Those that begin here, one chunk after n.
      if (first < later)
        copy_rows(queries + first * stride, stride, std::min(later, count) - first, p_.width, T(1),
                  rows(n, first), stride_);
      copy_transposed(rows(n, first), stride_, count - first, p_.width, T(LOG2_E),
                      columns(n) + first, BLOCK - first);
    }
  }

  // The logits of a block, to the base 2.
  void compare(const BlockPair<T>& pair, long query, long key, T* x) const {
    for_chunks(pair, key, [&](long n, long keys, T* to) {
      const long first = first_after(n), count = head_.count(query);
      if (first < count)
        multiply<T>(keys, BLOCK - first, p_.width, head_.k + n * CHUNK * stride_, stride_, 1,
                    columns(n) + first, BLOCK - first, to + first, BLOCK, false);
      else  // Lanes of queries that are not there stay finite.
        for (long k = 0; k < keys; ++k) std::fill(to + k * BLOCK + first, to + (k + 1) * BLOCK, T(0));
      if (n < own_) return;
      const long here = first - CHUNK;
      const T* const from =
          static_cast<const T*>(p_.diagonal) + (head_.at(query) + here) * CHUNK;
      copy_transposed(from, CHUNK, std::min(CHUNK, count - here), CHUNK, T(LOG2_E),
                      square_block_ + 0, CHUNK);
      for (long k = 0; k < CHUNK; ++k) copy_row(square_block_ + k * CHUNK, CHUNK, T(1), to + k * BLOCK + here);
    }, x);
  }

  // Before the blocks of keys of which ``differentiate`` is called for some.
  void clear_gradients(long query) {
    std::fill_n(grads_ + 0, std::max(0L, own_ + (head_.count(query) - 1) / CHUNK) * BLOCK * stride_,
                T(0));
  }

  // slopes: zero where masked.
  void differentiate(const BlockPair<T>& pair, long query, long key, T* slopes, T* grad_k) {
    for_chunks(pair, key, [&](long n, long keys, T* from) {
      const long first = first_after(n), count = head_.count(query);
      if (first < count) {
        multiply<T>(keys, stride_, count - first, from + first, BLOCK, 1, rows(n, first), stride_,
                    grad_k + n * CHUNK * stride_, stride_, true);
        multiply<T>(count - first, stride_, keys, from + first, 1, BLOCK,
                    head_.k + n * CHUNK * stride_, stride_, grads(n, first), stride_, true);
      }
      if (n < own_) return;
      const long here = first - CHUNK;
      T* const to = static_cast<T*>(p_.grad_diagonal) + (head_.at(query) + here) * CHUNK;
      for (long i = 0; i < std::min(CHUNK, count - here); ++i)
        for (long k = 0; k < CHUNK; ++k)
          to[i * CHUNK + k] = k < keys ? from[k * BLOCK + here + i] : T(0);
    }, slopes);
  }

  // From the farthest chunk to the nearest. Adds to the gradient of the queries.
  void finish(long query, T* grad_q) {
    const long count = head_.count(query), end = own_ + (count - 1) / CHUNK;
    for (long n = 0; n < end; ++n) {
      const long later = std::min(first_after(n + 1), count), first = first_after(n);
      // Those that begin here.
      if (first < later)
        copy_row(grads(n, first), (later - first) * stride_, T(1), grad_q + first * stride_);
      if (later == count) continue;
      multiply<T>(p_.width, stride_, count - later, rows(n + 1, later), 1, stride_,
                  grads(n, later), stride_, grad_products_ + (n + 1) * square_, stride_, true);
      multiply<T>(count - later, stride_, p_.width, grads(n, later), stride_, 1,
                  transposed_ + (n + 1) * square_, stride_, grads(n + 1, later), stride_, true);
    }
  }

  void write(long part) const {
    if (!there()) return;
    T* const to = static_cast<T*>(p_.grad_products) + first_product(part);
    for (long r = 0; r < chunks_ * p_.width; ++r)
      copy_row(grad_products_ + r * stride_, p_.width, T(1), to + r * p_.width);
  }

 private:
  T* rows(long n, long first) const { return rows_ + (n * BLOCK + first) * stride_; }
  T* grads(long n, long first) const { return grads_ + (n * BLOCK + first) * stride_; }
  T* columns(long n) const { return columns_ + n * BLOCK * p_.width; }

  // The first query of the block that is in a later chunk than n.
  long first_after(long n) const { return std::clamp((n + 1 - own_) * CHUNK, 0L, BLOCK); }

  // f(chunk, keys, block from its first key on)
  template <class F>
  static void for_chunks(const BlockPair<T>& pair, long key, const F& f, T* x) {
    for (long k = 0; k < pair.keys; k += CHUNK)
      f((key + k) / CHUNK, std::min(CHUNK, pair.keys - k), x + k * BLOCK);
  }

  long first_product(long part) const {
    const long head = (part * p_.batch + head_.b) * p_.heads + head_.h;
    return head * chunks_ * p_.width * p_.width;
  }
};
