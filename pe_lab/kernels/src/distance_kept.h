// Running sums of forget gates (FoX): kept_i - kept_j is added to the logits.
#pragma once

#include "distance_problem.h"

template <class T>
class Kept {
  static constexpr long N = Lanes<T>::count;
  const Distance& p_;
  const Head<T>& head_;
  Scratch<T> kept_;
  // The gradient of the sum at a key has a vector; its lanes are summed up at the end.
  Scratch<T> grad_;

 public:
  Kept(const Distance& p, const Head<T>& head)
      : p_(p),
        head_(head),
        kept_(there() ? p.keys + 2 * BLOCK : 0),
        grad_(p.grad_kept != nullptr ? p.keys * N : 0) {}

  bool there() const { return p_.kept != nullptr; }

  void enter() {
    if (!there()) return;
    copy_row(static_cast<const T*>(p_.kept) + of_head(), p_.keys, T(LOG2_E), kept_ + 0);
    std::fill_n(kept_ + p_.keys, 2 * BLOCK, T(0));
    if (p_.grad_kept != nullptr) std::fill_n(grad_ + 0, p_.keys * N, T(0));
  }

  // Adds the differences to a block of logits, to the base 2.
  void add(const BlockPair<T>& pair, long query, long key, T* x) const {
    if (!there()) return;
    for (long vector = 0; vector < BLOCK / N; ++vector) {
      const Vector<T> of_queries = load(kept_ + head_.offset + query + vector * N);
      for (long n = 0; n < pair.visible(vector); ++n) {
        T* const at = x + n * BLOCK + vector * N;
        store(at, load(at) + (of_queries - kept_[key + n]));
      }
    }
  }

  // Adds the gradient of the keys' sums. Those of the queries cancel: the slopes of a row sum to 0.
  void differentiate(const BlockPair<T>& pair, long key, const T* slopes) {
    if (p_.grad_kept == nullptr) return;
    for (long n = 0; n < pair.keys; ++n) {
      T* const to = grad_ + (key + n) * N;
      Vector<T> sum = load(to);
      for (long vector = 0; vector < BLOCK / N; ++vector)
        sum -= load(slopes + n * BLOCK + vector * N);
      store(to, sum);
    }
  }

  // Writes the gradients of the keys of this part.
  void write(long part) const {
    if (p_.grad_kept == nullptr) return;
    T* const to = static_cast<T*>(p_.grad_kept) + of_head();
    for (long first = part * BLOCK; first < p_.keys; first += p_.parts * BLOCK)
      for (long key = first; key < std::min<long>(first + BLOCK, p_.keys); ++key)
        to[key] = sum<T>(load(grad_ + key * N));
  }

 private:
  long of_head() const { return (head_.b * p_.heads + head_.h) * p_.keys; }
};
