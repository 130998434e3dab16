// Causal stick-breaking attention, forward and backward, without a (T, S) matrix: from the nearest
// key back, key j takes the share b = sigmoid(q_i . k_j / sqrt(D)) of what is left of a stick.
//
// The arguments are those of distance.cpp; parts share the queries of a head, and grad_k and grad_v
// have room for each. Products of shares, not sums of their logarithms: a weight that is less than
// the smallest number is zero by both.

#include "distance_problem.h"

// What is left for a block of queries, and the shares of its keys from the nearest back.
template <class T>
struct Sticks {
  static constexpr long N = Lanes<T>::count;
  Scratch<T> left{BLOCK};

  void enter(long count) {
    std::fill_n(left + 0, BLOCK, T(0));
    std::fill_n(left + 0, count, T(1));
  }

  // Whether all keys farther away have weight zero. NaN is not zero.
  bool broken() const {
    return std::all_of(left + 0, left + BLOCK, [](T x) { return x == 0; });
  }

  // f(key, taken, share, rest): from the nearest key back, the weight that each takes, its share,
  // and 1 - share; zero, zero and one for the query's token and those ahead.
  template <class F>
  void each(const BlockPair<T>& pair, long vector, const T* x, const F& f) {
    Vector<T> rest_of_stick = load(left + vector * N);
    const long before_all = std::clamp(pair.ahead + vector * N, 0L, pair.keys);
    for (long key = pair.visible(vector) - 1; key >= 0; --key) {
      const Vector<T> logit = load(x + key * BLOCK + vector * N);
      const Integers<T> positive = logit > 0;
      const Vector<T> power = softmax_weight<T>(positive ? -logit : logit);
      const Vector<T> large = 1 / (1 + power), small = power * large;
      Vector<T> share = positive ? large : small, rest = positive ? small : large;
      if (key >= before_all) {
        const Integers<T> masked = pair.masked(vector, key + 1);
        share = masked ? Vector<T>{} : share;
        rest = masked ? all<T>(1) : rest;
      }
      f(key, share * rest_of_stick, share, rest);
      rest_of_stick *= rest;
    }
    store(left + vector * N, rest_of_stick);
  }
};

// What both passes do: blocks of queries of a part, and of keys from the nearest back.
template <class T>
struct StickPass {
  static constexpr long N = Lanes<T>::count;
  const Distance& p;
  Head<T> at;
  Sticks<T> sticks;
  Scratch<T> weights{BLOCK * BLOCK};

  explicit StickPass(const Distance& p) : p(p), at(p) {}

  template <class F>
  void blocks(long query, const F& f) {
    const long count = at.count(query), index = at.offset + query;
    sticks.enter(count);
    for (long key = (index + count - 1) / BLOCK * BLOCK; key >= 0 && !sticks.broken();
         key -= BLOCK) {
      const BlockPair<T> pair(index, count, key, p.keys);
      pair.compare(at.k + key * at.stride, p.width, at.stride, at.query_columns, weights);
      f(pair, key);
    }
  }

  // What is left of a query's stick, if its token keeps it and is not dropped.
  T remainder(long query, long i) const {
    if (!p.remainder) return 0;
    const bool drops = p.drop.threshold != 0;
    return drops && !kept(p.drop, at.hashed[i], static_cast<uint32_t>(at.offset + query + i))
               ? 0
               : sticks.left[i];
  }
};

template <class T>
class StickForward {
  static constexpr long N = Lanes<T>::count;
  const Distance& p_;
  StickPass<T> pass_;
  Scratch<T> out_;

 public:
  explicit StickForward(const Distance& p) : p_(p), pass_(p), out_(BLOCK * pass_.at.stride) {}

  void head(long number, long part) {
    pass_.at.enter(number);
    for (long query = part * BLOCK; query < p_.queries; query += p_.parts * BLOCK) queries(query);
  }

 private:
  void queries(long query) {
    Head<T>& at = pass_.at;
    at.enter_queries(query);
    std::fill_n(out_ + 0, BLOCK * at.stride, T(0));
    pass_.blocks(query, [&](const BlockPair<T>& pair, long key) {
      for (long vector = 0; vector < BLOCK / N; ++vector) weigh(pair, vector, key);
      pair.gather(pass_.weights, at.v + key * at.stride, at.stride, out_);
    });
    for (long i = 0; i < at.count(query); ++i) {
      T* const row = out_ + i * at.stride;
      const T* const value = at.v + (at.offset + query + i) * at.stride;
      if (const T rest = pass_.remainder(query, i); rest != 0)
        for (long d = 0; d < p_.width; ++d) row[d] += rest * value[d];
      copy_row(row, p_.width, T(p_.drop.scale), p_.out.template row<T>(at.b, at.h, query + i));
    }
  }

  void weigh(const BlockPair<T>& pair, long vector, long first_key) {
    T* const x = pass_.weights + vector * N;
    pass_.sticks.each(pair, vector, pass_.weights,
                      [&](long key, Vector<T> weight, Vector<T>, Vector<T>) {
                        if (p_.drop.threshold != 0)
                          weight = pass_.at.kept_of(vector, first_key + key) ? weight
                                                                             : Vector<T>{};
                        store(x + key * BLOCK, weight);
                      });
  }
};

// With e_j = weight_j (grad_out . v_j) and the share b_j of a key, the gradient of its logit is
// e_j (1 - b_j) - b_j (sum of e over all that is farther away, the remainder included), which is
// out . grad_out without the e up to j.
template <class T>
class StickBackward {
  static constexpr long N = Lanes<T>::count;
  const Distance& p_;
  StickPass<T> pass_;
  Scratch<T> slopes_{BLOCK * BLOCK}, farther_{BLOCK};
  Scratch<T> query_rows_, grad_out_rows_, grad_out_columns_, grad_q_, grad_k_, grad_v_;

 public:
  explicit StickBackward(const Distance& p)
      : p_(p),
        pass_(p),
        query_rows_(BLOCK * pass_.at.stride),
        grad_out_rows_(BLOCK * pass_.at.stride),
        grad_out_columns_(p.width * BLOCK),
        grad_q_(BLOCK * pass_.at.stride),
        grad_k_(p.keys * pass_.at.stride),
        grad_v_(p.keys * pass_.at.stride) {}

  void head(long number, long part) {
    Head<T>& at = pass_.at;
    at.enter(number);
    std::fill_n(grad_k_ + 0, p_.keys * at.stride, T(0));
    std::fill_n(grad_v_ + 0, p_.keys * at.stride, T(0));
    for (long query = part * BLOCK; query < p_.queries; query += p_.parts * BLOCK) queries(query);
    for (long key = 0; key < p_.keys; ++key) {
      copy_row(grad_k_ + key * at.stride, p_.width, T(1), p_.grad_k.row<T>(at.b, at.h, key, part));
      copy_row(grad_v_ + key * at.stride, p_.width, T(1), p_.grad_v.row<T>(at.b, at.h, key, part));
    }
  }

 private:
  void queries(long query) {
    Head<T>& at = pass_.at;
    const long count = at.count(query), stride = at.stride;
    enter_queries(query, count);
    std::fill_n(grad_q_ + 0, BLOCK * stride, T(0));
    pass_.blocks(query, [&](const BlockPair<T>& pair, long key) {
      pair.compare(at.v + key * stride, p_.width, stride, grad_out_columns_, slopes_);
      for (long vector = 0; vector < BLOCK / N; ++vector) differentiate(pair, vector, key);
      pair.scatter(pass_.weights, grad_out_rows_, stride, grad_v_ + key * stride);
      pair.scatter(slopes_, query_rows_, stride, grad_k_ + key * stride);
      pair.gather(slopes_, at.k + key * stride, stride, grad_q_);
    });
    for (long i = 0; i < count; ++i) {
      copy_row(grad_q_ + i * stride, p_.width, T(p_.softmax_scale),
               p_.grad_q.row<T>(at.b, at.h, query + i));
      if (const T rest = pass_.remainder(query, i); rest != 0)
        for (long d = 0; d < p_.width; ++d)
          grad_v_[(at.offset + query + i) * stride + d] += rest * grad_out_rows_[i * stride + d];
    }
  }

  void enter_queries(long query, long count) {
    Head<T>& at = pass_.at;
    const auto rows = at.enter_queries(query);
    copy_rows(rows.first, rows.stride, count, p_.width, T(p_.softmax_scale), query_rows_ + 0,
              at.stride);
    std::fill_n(farther_ + 0, BLOCK, T(0));
    for (long i = 0; i < count; ++i) {
      const T* const grad = p_.grad_out.row<T>(at.b, at.h, query + i);
      farther_[i] = dot(p_.out.row<T>(at.b, at.h, query + i), grad, p_.width);
      copy_rows(grad, 0, 1, p_.width, T(p_.drop.scale), grad_out_rows_ + i * at.stride, at.stride);
    }
    copy_transposed(grad_out_rows_ + 0, at.stride, count, p_.width, T(1), grad_out_columns_ + 0,
                    BLOCK);
  }

  // Shares to dropped weights (without 1 / (1 - p)) and gradients of logits.
  void differentiate(const BlockPair<T>& pair, long vector, long first_key) {
    T* const x = pass_.weights + vector * N;
    T* const slopes = slopes_ + vector * N;
    Vector<T> farther = load(farther_ + vector * N);
    pass_.sticks.each(
        pair, vector, pass_.weights,
        [&](long key, Vector<T> weight, Vector<T> share, Vector<T> rest) {
          if (p_.drop.threshold != 0)
            weight = pass_.at.kept_of(vector, first_key + key) ? weight : Vector<T>{};
          const Vector<T> e = weight * load(slopes + key * BLOCK);
          farther -= e;
          store(x + key * BLOCK, weight);
          store(slopes + key * BLOCK, e * rest - share * farther);
        });
    store(farther_ + vector * N, farther);
    // Keys masked from all lanes are still summed over.
    for (long key = pair.visible(vector); key < pair.keys; ++key) {
      store(x + key * BLOCK, Vector<T>{});
      store(slopes + key * BLOCK, Vector<T>{});
    }
  }
};

// 0, or 1 if there was too little memory.
extern "C" {
int stick_breaking_forward_float(const Distance* p) {
  return in_every_head<StickForward<float>>(*p);
}
int stick_breaking_forward_double(const Distance* p) {
  return in_every_head<StickForward<double>>(*p);
}
int stick_breaking_backward_float(const Distance* p) {
  return in_every_head<StickBackward<float>>(*p);
}
int stick_breaking_backward_double(const Distance* p) {
  return in_every_head<StickBackward<double>>(*p);
}
}
