#pragma once

#include "cope_head.h"

// The backward pass of one head, block by block of queries, with recomputed logits.
template <class T>
class CopeBackward {
  static constexpr long N = Lanes<T>::count;
  Head<T> head_;
  Scratch<T> grad_k_, grad_v_, grad_gate_k_, grad_q_, grad_gate_q_;
  Block<T> grad_out_;
  Scratch<T> out_;
  // (keys, ROWS): the gradients of dropped weights, replaced by those of logits; and of gate
  // logits.
  Scratch<T> grad_logits_, separate_grad_gates_;
  // (keys, N): the gradients of positions, and the gates that they sum.
  Scratch<T> grad_positions_, gates_;
  Scratch<T> log_sum_{ROWS}, expected_{ROWS};

 public:
  CopeBackward(const Cope& p, const T* table)
      : head_(p, table),
        grad_k_(p.keys * head_.stride),
        grad_v_(p.keys * head_.stride),
        grad_gate_k_(head_.separate_gates ? p.keys * head_.stride : 0),
        grad_q_(ROWS * head_.stride),
        grad_gate_q_(ROWS * head_.stride),
        grad_out_(p.width),
        out_(ROWS * head_.stride),
        grad_logits_(p.keys * ROWS),
        separate_grad_gates_(head_.separate_gates ? p.keys * ROWS : 0),
        grad_positions_(p.keys * N),
        gates_(p.keys * N) {}

  // ``grad_table`` (positions, stride) is added to.
  void run(long task, T* grad_table) {
    const Cope& p = head_.p;
    head_.enter(task);
    const long size = p.keys * head_.stride;
    std::fill_n(grad_k_ + 0, size, T(0));
    std::fill_n(grad_v_ + 0, size, T(0));
    if (head_.separate_gates) std::fill_n(grad_gate_k_ + 0, size, T(0));
    head_.blocks([&](long first, long count) { queries(first, count, grad_table); });
    // Their queries were scaled for the base 2.
    store_keys(grad_k_, p.grad_k, LN_2);
    store_keys(grad_v_, p.grad_v, 1);
    if (head_.separate_gates) store_keys(grad_gate_k_, p.grad_gate_k, LN_2);
  }

 private:
  void queries(long first, long count, T* grad_table) {
    const Cope& p = head_.p;
    const long stride = head_.stride;
    const VisibleKeys<T> seen = head_.enter_queries(first, count);
    enter_outputs(first, count);
    seen.compare(head_.v, stride, grad_out_.columns, grad_logits_);
    T* const grad_gates = head_.separate_gates ? separate_grad_gates_ : grad_logits_;
    for (long lane = 0; lane < ROWS; lane += N) {
      const long counted = differentiate(seen, lane);
      count_back(grad_gates + lane, counted, seen.seen(lane));
    }
    seen.scatter(head_.logits, grad_out_.rows, stride, grad_v_);
    seen.scatter(grad_logits_, head_.queries.rows, stride, grad_k_);
    std::fill_n(grad_q_ + 0, ROWS * stride, T(0));
    seen.gather(grad_logits_, head_.k, stride, grad_q_);
    const bool separate_queries = p.gate_q.data != nullptr;
    T* const grad_gate_q = separate_queries ? grad_gate_q_ : grad_q_;
    if (separate_queries) std::fill_n(grad_gate_q_ + 0, ROWS * stride, T(0));
    const T* const gate_queries = head_.gate_queries().rows;
    if (head_.separate_gates) {
      seen.scatter(grad_gates, gate_queries, stride, grad_gate_k_);
      seen.gather(grad_gates, head_.gate_keys, stride, grad_gate_q);
    }
    const long positions = head_.scores.finish_gradients();
    multiply<T>(ROWS, stride, positions, head_.scores.grad, 1, ROWS, head_.scores.table, stride,
                grad_gate_q, stride, true);
    multiply<T>(positions, stride, ROWS, head_.scores.grad, ROWS, 1, gate_queries, stride,
                grad_table, stride, true);
    store_rows(grad_q_ + 0, stride, p.grad_q, head_.b, head_.h, first, count, 0, p.width,
               p.softmax_scale);
    if (separate_queries)
      store_rows(grad_gate_q_ + 0, stride, p.grad_gate_q, head_.b, head_.h, first, count, 0,
                 p.width, p.softmax_scale);
  }

  // The gradients of the outputs, times dropout's 1 / (1 - p), and the expectation of the gradients
  // of the dropped weights under the weights.
  void enter_outputs(long first, long count) {
    const Cope& p = head_.p;
    grad_out_.take(p.grad_out, head_.b, head_.h, first, count, p.width, p.drop.scale);
    take_rows(p.out, head_.b, head_.h, first, count, p.width, 1 / p.drop.scale, out_ + 0);
    for (long lane = 0; lane < ROWS; lane += N) {
      Vector<T> products[N] = {};
      for (long d = 0; d < head_.stride; d += N)
        for (long n = 0; n < N; ++n) {
          const long at = (lane + n) * head_.stride + d;
          products[n] += load(grad_out_.rows + at) * load(out_ + at);
        }
      transpose<T>(products);
      Vector<T> expected = {};
      for (const Vector<T>& part : products) expected += part;
      store(expected_ + lane, expected);
    }
    for (long i = 0; i < count; ++i) log_sum_[i] = head_.log_sum(first + i);
    // Padding queries have weight zero.
    std::fill(log_sum_ + count, log_sum_ + ROWS, T(1e30));
  }

  // For a vector of queries: replaces logits by dropped weights, and gradients of these by
  // gradients of logits; adds the gradients of the scores. Returns the number of keys before the
  // first one that changes a position.
  long differentiate(const VisibleKeys<T>& seen, long lane) {
    T* const logits = head_.logits + lane;
    T* const grad_logits = grad_logits_ + lane;
    const T* const gates = head_.gate_logits() + lane;
    const Vector<T> log_sum = load(log_sum_ + lane), expected = load(expected_ + lane);
    const Dropout drop = head_.p.drop;
    const Hashes<T> hashed = head_.hashed(seen, lane);
    const auto weigh = [&](long key, Vector<T> score) {
      const Vector<T> weight = softmax_weight<T>(load(logits + key * ROWS) + score - log_sum);
      Vector<T> dropped = weight, grad = load(grad_logits + key * ROWS);
      if (drop.threshold != 0) {
        const Integers<T> stays = kept<T>(drop, hashed, static_cast<uint32_t>(key));
        dropped = stays ? weight : Vector<T>{};
        grad = stays ? grad : Vector<T>{};
      }
      grad = weight * (grad - expected);
      store(logits + key * ROWS, dropped);
      store(grad_logits + key * ROWS, grad);
      return grad;
    };
    Scores<T>& scores = head_.scores;
    Positions<T> positions(lane, scores);
    Around<T> score(scores.at, lane);
    Vector<T> grad_below = {}, grad_above = {};
    alignas(64) T grads[positions.MOST * N];
    long key = seen.seen(lane) - 1;
    while (key >= 0 && !positions.all_last()) {
      const long count = std::min(key + 1, positions.MOST);
      positions.enter_keys(gates + key * ROWS, count, scores);
      for (long n = 0; n < count; ++n, --key) {
        Integers<T> stays;
        const Vector<T> at = score.enter_key(positions, n, stays);
        const Vector<T> grad = weigh(key, at), upper = grad * score.fraction;
        grad_below = (stays ? grad_below : grad_above) + (grad - upper);
        grad_above = (stays ? grad_above : Vector<T>{}) + upper;
        store(grads + n * N, grad_below);
        store(grad_positions_ + key * N, grad * score.slope);
        store(gates_ + key * N, load(positions.gate + n * N));
      }
      // The last key of a position has the sum over its keys.
      positions.write(grads, count, scores.grad);
    }
    const long uncounted = key + 1;
    for (; key >= 0; --key) grad_below += weigh(key, score.below);
    for (long n = 0; n < N; ++n) {
      scores.grad[score.place[n]] = grad_below[n];
      scores.grad[score.place[n] + ROWS] = grad_above[n];
    }
    return uncounted;
  }

  // The gradients of gates: a gate is part of the positions of all keys to its left, except the
  // uncounted ones.
  void count_back(T* grad_gates, long uncounted, long keys) {
    if (head_.separate_gates)
      for (long key = 0; key < uncounted; ++key) store(grad_gates + key * ROWS, Vector<T>{});
    Vector<T> left = {};
    for (long key = uncounted; key < keys; ++key) {
      left += load(grad_positions_ + key * N) * T(LN_2);
      const Vector<T> gate = load(gates_ + key * N);
      Vector<T> grad = left * (gate - gate * gate);
      if (!head_.separate_gates) grad += load(grad_gates + key * ROWS);
      store(grad_gates + key * ROWS, grad);
    }
  }

  void store_keys(const T* from, const Strided& to, double factor) {
    store_rows(from, head_.stride, to, head_.b, head_.h, 0, head_.p.keys, head_.part, head_.p.width,
               factor);
  }
};
