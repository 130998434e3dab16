#pragma once

#include "cope_positions.h"

// One head of one sequence: its keys and values, and the present block of queries with its logits.
template <class T>
struct Head {
  static constexpr long N = Lanes<T>::count;
  const Cope& p;
  const bool own_gates;
  const long stride;  // of a row of keys, filled up to whole vectors
  long b = 0, h = 0, part = 0;
  Scratch<T> k, v, own_gate_k, logits, own_gate_logits;
  Block<T> queries, own_gate_queries;
  Scores<T> scores;

  Head(const Cope& p, const T* table)
      : p(p),
        own_gates(p.own_gates()),
        stride(whole(p.width, N)),
        k(p.keys * stride),
        v(p.keys * stride),
        own_gate_k(own_gates ? p.keys * stride : 0),
        logits(p.keys * ROWS),
        own_gate_logits(own_gates ? p.keys * ROWS : 0),
        queries(p.width),
        own_gate_queries(p.width),
        scores(table, p.positions, stride) {}

  // The queries that ask for gates and positions.
  Block<T>& gate_queries() { return p.gate_q.data != nullptr ? own_gate_queries : queries; }
  T* gate_logits() { return own_gates ? own_gate_logits : logits; }

  // A number of (sequence, head, part).
  void enter(long task) {
    part = task % p.parts;
    h = task / p.parts % p.heads;
    b = task / p.parts / p.heads;
    enter_keys(p.k, k);
    enter_keys(p.v, v);
    if (own_gates) enter_keys(p.gate_k.data != nullptr ? p.gate_k : p.k, own_gate_k);
  }

  // f(first, count) for the blocks of queries of this part.
  template <class F>
  void blocks(const F& f) const {
    for (long first = part * ROWS; first < p.queries; first += p.parts * ROWS)
      f(first, std::min(ROWS, p.queries - first));
  }

  Triangle<T> enter_queries(long first, long count) {
    const Triangle<T> seen{p.keys - p.queries + first, p.keys};
    queries.take(p.q, b, h, first, count, p.width, p.query_scale());
    if (p.gate_q.data != nullptr)
      own_gate_queries.take(p.gate_q, b, h, first, count, p.width, p.query_scale());
    seen.compare(k, stride, queries.columns, logits);
    seen.hide(logits);
    if (own_gates) {
      seen.compare(own_gate_k, stride, gate_queries().columns, own_gate_logits);
      seen.hide(own_gate_logits);
    }
    scores.enter_queries(gate_queries().columns);
    return seen;
  }

  // What dropout hashes for the vector of queries from this lane on.
  Hashes<T> hashed(const Triangle<T>& seen, long lane) const {
    Hashes<T> rows;
    for (long n = 0; n < N; ++n) rows[n] = (b * p.heads + h) * p.keys + seen.place + lane + n;
    return hashed_rows(p.drop, rows);
  }

  // Where a query's sum is in memory.
  T& log_sum(long query) const {
    return static_cast<T*>(p.log_sum)[(b * p.heads + h) * p.queries + query];
  }

 private:
  void enter_keys(const Strided& from, T* to) {
    copy_rows(from.row<T>(b, h, 0), from.token, p.keys, p.width, T(1), to, stride);
  }
};
