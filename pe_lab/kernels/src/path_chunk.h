// PaTH within chunks of tokens, forward and backward: with the reflections H = I - beta w w^T of a
// chunk, for rows w_t of W, queries Q and keys K,
//   between[t, u] = beta_t w_t . w_u, u > t;  lost = (I + between)^-1 [met | beta W],
//   met[t, a] = beta_t w_t . q_a, t <= a;  later[t, j] = w_t . k_j, j < t;
// with X and Y the two parts of ``lost``:
//   edge queries Q - X^T W;  edge keys K - later^T Y;  product I - Y^T W;
//   logits within the chunk Q K^T - X^T later.
#pragma once

#include <algorithm>

#include "blocks.h"
#include "multiply.h"
#include "parallel.h"

constexpr long CHUNK = 16;  // as in distance_carried.h

struct Chunks {
  Fork fork;
  int64_t threads, batch, heads, queries, keys, width;
  int64_t first;  // the first key whose query is of use: that of a chunk
  double scale;   // of queries
  Strided q, k, w;
  const void* beta;  // (batch, heads, keys)
  Strided edge_q, edge_k;
  void* products;  // (batch, heads, chunks, width, width)
  void* logits;    // (batch, heads, keys - first, CHUNK)
  // Null in the forward pass; then those above are gradients.
  Strided grad_q, grad_k, grad_w;
  void* grad_beta;
};

template <class T>
class Chunk {
  static constexpr long N = Lanes<T>::count;
  const Chunks& p_;
  const long width_, stride_, wide_, chunks_;
  typedef Scratch<T> Matrix;
  Matrix w_, q_, k_, bw_, w_t_, q_t_, k_t_, between_, later_, lost_, lost_t_, product_;
  // Gradients.
  Matrix dq_, dk_, dw_, edge_q_, edge_k_, edge_q_t_, edge_k_t_, logits_, logits_t_, solved_, at_;
  T beta_[CHUNK], grad_beta_[CHUNK];
  long b_ = 0, h_ = 0, start_ = 0, count_ = 0;

 public:
  explicit Chunk(const Chunks& p)
      : p_(p),
        width_(p.width),
        stride_(round_up(p.width, N)),
        wide_(CHUNK + stride_),
        chunks_((p.keys + CHUNK - 1) / CHUNK),
        w_(rows()), q_(rows()), k_(rows()), bw_(rows()),
        w_t_(rows()), q_t_(rows()), k_t_(rows()),
        between_(CHUNK * CHUNK), later_(CHUNK * CHUNK),
        lost_(CHUNK * wide_), lost_t_(CHUNK * wide_),
        product_(stride_ * stride_),
        dq_(rows()), dk_(rows()), dw_(rows()), edge_q_(rows()), edge_k_(rows()),
        edge_q_t_(rows()), edge_k_t_(rows()),
        logits_(CHUNK * CHUNK), logits_t_(CHUNK * CHUNK),
        solved_(CHUNK * wide_), at_(CHUNK * (CHUNK + stride_)) {}

  void forward(long task) {
    enter(task);
    // edge_q = Q - X^T W, edge_k = K - later^T Y
    times(CHUNK, stride_, CHUNK, lost_, 1, wide_, w_, stride_, edge_q_, stride_);
    times(CHUNK, stride_, CHUNK, later_, 1, CHUNK, lost_ + CHUNK, wide_, edge_k_, stride_);
    for (long n = 0; n < CHUNK * stride_; ++n) {
      edge_q_[n] = q_[n] - edge_q_[n];
      edge_k_[n] = k_[n] - edge_k_[n];
    }
    // product = I - Y^T W
    times(width_, stride_, CHUNK, lost_ + CHUNK, 1, wide_, w_, stride_, product_, stride_);
    T* const product = product_row();
    for (long r = 0; r < width_; ++r)
      for (long c = 0; c < width_; ++c)
        product[r * width_ + c] = T(r == c) - product_[r * stride_ + c];
    // logits = Q K^T - X^T later
    times(CHUNK, CHUNK, width_, q_, stride_, 1, k_t_, CHUNK, logits_, CHUNK);
    times(CHUNK, CHUNK, CHUNK, lost_, 1, wide_, later_, CHUNK, logits_t_, CHUNK);
    for (long i = 0; i < count_; ++i) {
      copy_row(edge_k_ + i * stride_, width_, T(1), p_.edge_k.row<T>(b_, h_, start_ + i));
      if (start_ < p_.first) continue;
      copy_row(edge_q_ + i * stride_, width_, T(1), p_.edge_q.row<T>(b_, h_, start_ + i - p_.first));
      for (long j = 0; j < CHUNK; ++j)
        logits_row(i)[j] = logits_[i * CHUNK + j] - logits_t_[i * CHUNK + j];
    }
  }

  void backward(long task) {
    enter(task);
    enter_gradients();
    T* const x = lost_;
    T* const y = lost_ + CHUNK;
    transpose(x, wide_, CHUNK, lost_t_, CHUNK);
    transpose(y, wide_, stride_, lost_t_ + CHUNK * CHUNK, CHUNK);
    // Q and K in the logits within.
    std::copy_n(edge_q_ + 0, CHUNK * stride_, dq_ + 0);
    std::copy_n(edge_k_ + 0, CHUNK * stride_, dk_ + 0);
    times(CHUNK, stride_, CHUNK, logits_, CHUNK, 1, k_, stride_, dq_, stride_, true);
    times(CHUNK, stride_, CHUNK, logits_, 1, CHUNK, q_, stride_, dk_, stride_, true);
    // later
    T* const square = at_;
    times(CHUNK, CHUNK, CHUNK, x, wide_, 1, logits_, CHUNK, square, CHUNK);
    times(CHUNK, CHUNK, width_, y, wide_, 1, edge_k_t_, CHUNK, square, CHUNK, true);
    for (long t = 0; t < CHUNK; ++t)
      for (long j = 0; j < CHUNK; ++j)
        square[t * CHUNK + j] = j < t ? -square[t * CHUNK + j] : T(0);
    times(CHUNK, stride_, CHUNK, square, CHUNK, 1, k_, stride_, dw_, stride_);
    times(CHUNK, stride_, CHUNK, square, 1, CHUNK, w_, stride_, dk_, stride_, true);
    // X and Y, negative
    times(CHUNK, CHUNK, CHUNK, later_, CHUNK, 1, logits_t_, CHUNK, solved_, wide_);
    times(CHUNK, CHUNK, width_, w_, stride_, 1, edge_q_t_, CHUNK, solved_, wide_, true);
    times(CHUNK, stride_, CHUNK, later_, CHUNK, 1, edge_k_, stride_, solved_ + CHUNK, wide_);
    times(CHUNK, stride_, width_, w_, stride_, 1, product_, stride_, solved_ + CHUNK, wide_, true);
    // W in the edges and the product: - X edge_q - Y product
    T* const rows = at_ + CHUNK * CHUNK;
    times(CHUNK, stride_, CHUNK, x, wide_, 1, edge_q_, stride_, rows, stride_);
    for (long d = 0; d < width_; ++d)  // product_ holds the transposed gradient
      for (long t = 0; t < CHUNK; ++t)
        for (long e = 0; e < width_; ++e)
          rows[t * stride_ + e] += y[t * wide_ + d] * product_[e * stride_ + d];
    for (long n = 0; n < CHUNK * stride_; ++n) dw_[n] -= rows[n];
    // (I + between)^-T
    for (long t = 0; t < CHUNK; ++t) {
      T* const row = solved_ + t * wide_;
      for (long n = 0; n < wide_; ++n) row[n] = -row[n];
      for (long u = 0; u < t; ++u) {
        const T factor = between_[u * CHUNK + t];
        for (long n = 0; n < wide_; ++n) row[n] -= factor * solved_[u * wide_ + n];
      }
    }
    // between
    times(CHUNK, CHUNK, CHUNK, solved_, wide_, 1, lost_t_, CHUNK, square, CHUNK);
    times(CHUNK, CHUNK, width_, solved_ + CHUNK, wide_, 1, lost_t_ + CHUNK * CHUNK, CHUNK, square,
          CHUNK, true);
    for (long t = 0; t < CHUNK; ++t)
      for (long u = 0; u < CHUNK; ++u) {
        square[t * CHUNK + u] = u > t ? -square[t * CHUNK + u] : T(0);
        if (u < t) solved_[t * wide_ + u] = 0;  // met
      }
    times(CHUNK, stride_, CHUNK, square, 1, CHUNK, bw_, stride_, dw_, stride_, true);
    times(CHUNK, stride_, CHUNK, solved_, 1, wide_, bw_, stride_, dq_, stride_, true);
    // What beta multiplies: w_u between, q_a met, and w_t itself.
    times(CHUNK, stride_, CHUNK, square, CHUNK, 1, w_, stride_, rows, stride_);
    times(CHUNK, stride_, CHUNK, solved_, wide_, 1, q_, stride_, rows, stride_, true);
    for (long t = 0; t < CHUNK; ++t) {
      grad_beta_[t] = 0;
      for (long d = 0; d < width_; ++d) {
        const T slope = rows[t * stride_ + d] + solved_[t * wide_ + CHUNK + d];
        grad_beta_[t] += slope * w_[t * stride_ + d];
        dw_[t * stride_ + d] += slope * beta_[t];
      }
    }
    leave();
  }

 private:
  long rows() const { return std::max(CHUNK, p_.width + 16) * (CHUNK + p_.width + 16); }

  // c = (add ? c : 0) + a b, as ``multiply``.
  static void times(long rows, long columns, long inner, const T* a, long a_row, long a_inner,
                    const T* b, long b_inner, T* c, long c_row, bool add = false) {
    multiply<T>(rows, columns, inner, a, a_row, a_inner, b, b_inner, c, c_row, add);
  }

  // to[c, r] = from[r, c] of CHUNK rows
  static void transpose(const T* from, long stride, long columns, T* to, long to_row) {
    copy_transposed(from, stride, CHUNK, columns, T(1), to, to_row);
  }

  T* product_row() const {
    const long chunk = (b_ * p_.heads + h_) * chunks_ + start_ / CHUNK;
    return static_cast<T*>(p_.products) + chunk * width_ * width_;
  }
  T* logits_row(long i) const {
    const long row = (b_ * p_.heads + h_) * (p_.keys - p_.first) + start_ - p_.first + i;
    return static_cast<T*>(p_.logits) + row * CHUNK;
  }

  void enter_rows(const Strided& from, long skipped, T factor, T* to) {
    std::fill_n(to, CHUNK * stride_, T(0));
    for (long i = std::max(0L, skipped - start_); i < count_; ++i)
      copy_row(from.row<T>(b_, h_, start_ + i - skipped), width_, factor, to + i * stride_);
  }

  void enter(long task) {
    b_ = task / chunks_ / p_.heads;
    h_ = task / chunks_ % p_.heads;
    start_ = task % chunks_ * CHUNK;
    count_ = std::min<long>(CHUNK, p_.keys - start_);
    enter_rows(p_.w, 0, T(1), w_);
    enter_rows(p_.k, 0, T(1), k_);
    enter_rows(p_.q, p_.keys - p_.queries, T(p_.scale), q_);
    const T* const beta =
        static_cast<const T*>(p_.beta) + (b_ * p_.heads + h_) * p_.keys + start_;
    for (long t = 0; t < CHUNK; ++t) beta_[t] = t < count_ ? beta[t] : T(0);
    transpose(w_, stride_, stride_, w_t_, CHUNK);
    transpose(q_, stride_, stride_, q_t_, CHUNK);
    transpose(k_, stride_, stride_, k_t_, CHUNK);
    times(CHUNK, CHUNK, width_, w_, stride_, 1, w_t_, CHUNK, between_, CHUNK);
    times(CHUNK, CHUNK, width_, w_, stride_, 1, k_t_, CHUNK, later_, CHUNK);
    times(CHUNK, CHUNK, width_, w_, stride_, 1, q_t_, CHUNK, lost_, wide_);
    for (long t = 0; t < CHUNK; ++t) {
      copy_row(w_ + t * stride_, stride_, beta_[t], bw_ + t * stride_);
      std::copy_n(bw_ + t * stride_, stride_, lost_ + t * wide_ + CHUNK);
      for (long n = 0; n < CHUNK; ++n) {
        between_[t * CHUNK + n] *= n > t ? beta_[t] : T(0);
        later_[t * CHUNK + n] *= T(n < t);
        lost_[t * wide_ + n] *= n >= t ? beta_[t] : T(0);
      }
    }
    for (long t = CHUNK - 2; t >= 0; --t)
      for (long u = t + 1; u < CHUNK; ++u) {
        const T factor = between_[t * CHUNK + u];
        for (long n = 0; n < wide_; ++n) lost_[t * wide_ + n] -= factor * lost_[u * wide_ + n];
      }
  }

  void enter_gradients() {
    std::fill_n(logits_ + 0, CHUNK * CHUNK, T(0));
    std::fill_n(edge_q_ + 0, CHUNK * stride_, T(0));
    std::fill_n(edge_k_ + 0, CHUNK * stride_, T(0));
    for (long i = 0; i < count_; ++i) {
      copy_row(p_.edge_k.row<T>(b_, h_, start_ + i), width_, T(1), edge_k_ + i * stride_);
      if (start_ < p_.first) continue;
      copy_row(p_.edge_q.row<T>(b_, h_, start_ + i - p_.first), width_, T(1), edge_q_ + i * stride_);
      copy_row(logits_row(i), CHUNK, T(1), logits_ + i * CHUNK);
    }
    transpose(edge_q_, stride_, stride_, edge_q_t_, CHUNK);
    transpose(edge_k_, stride_, stride_, edge_k_t_, CHUNK);
    transpose(logits_, CHUNK, CHUNK, logits_t_, CHUNK);
    std::fill_n(product_ + 0, width_ * stride_, T(0));
    for (long r = 0; r < width_; ++r)
      for (long c = 0; c < width_; ++c) product_[c * stride_ + r] = product_row()[r * width_ + c];
  }

  void leave() {
    const long skipped = p_.keys - p_.queries;
    T* const grad_beta =
        static_cast<T*>(p_.grad_beta) + (b_ * p_.heads + h_) * p_.keys + start_;
    for (long i = 0; i < count_; ++i) {
      copy_row(dk_ + i * stride_, width_, T(1), p_.grad_k.row<T>(b_, h_, start_ + i));
      copy_row(dw_ + i * stride_, width_, T(1), p_.grad_w.row<T>(b_, h_, start_ + i));
      grad_beta[i] = grad_beta_[i];
      if (start_ + i >= skipped)
        copy_row(dq_ + i * stride_, width_, T(p_.scale),
                 p_.grad_q.row<T>(b_, h_, start_ + i - skipped));
    }
  }
};
