#pragma once

#include "cope_positions.h"

// One head of one sequence: its keys and values, and the current block of queries with its logits.
template <class T>
struct Head {
  static constexpr long N = Lanes<T>::count;
  const Cope& p;
  const bool separate_gates;
  const long stride;  // of a row of keys, padded to whole vectors
  long b = 0, h = 0, part = 0;
  Scratch<T> k, v, gate_keys, logits, separate_gate_logits;
  Block<T> queries, separate_gate_queries;
  Scores<T> scores;

  Head(const Cope& p, const T* table)
      : p(p),
        separate_gates(p.separate_gates()),
        stride(round_up(p.width, N)),
        k(p.keys * stride),
        v(p.keys * stride),
        gate_keys(separate_gates ? p.keys * stride : 0),
        logits(p.keys * ROWS),
        separate_gate_logits(separate_gates ? p.keys * ROWS : 0),
        queries(p.width),
        separate_gate_queries(p.width),
        scores(table, p.positions, stride) {}

  // The queries of gates and positions.
  Block<T>& gate_queries() { return p.gate_q.data != nullptr ? separate_gate_queries : queries; }
  T* gate_logits() { return separate_gates ? separate_gate_logits : logits; }

  // task: the number of a (sequence, head, part).
  void enter(long task) {
    part = task % p.parts;
    h = task / p.parts % p.heads;
    b = task / p.parts / p.heads;
    enter_keys(p.k, k);
    enter_keys(p.v, v);
    if (separate_gates) enter_keys(p.gate_k.data != nullptr ? p.gate_k : p.k, gate_keys);
  }

  // Calls f(first, count) for the blocks of queries of this part.
  template <class F>
  void blocks(const F& f) const {
    for (long first = part * ROWS; first < p.queries; first += p.parts * ROWS)
      f(first, std::min(ROWS, p.queries - first));
  }

  VisibleKeys<T> enter_queries(long first, long count) {
    const VisibleKeys<T> seen{p.keys - p.queries + first, p.keys};
    queries.take(p.q, b, h, first, count, p.width, p.query_scale());
    if (p.gate_q.data != nullptr)
      separate_gate_queries.take(p.gate_q, b, h, first, count, p.width, p.query_scale());
    seen.compare(k, stride, queries.columns, logits);
    seen.mask(logits);
    if (separate_gates) {
      seen.compare(gate_keys, stride, gate_queries().columns, separate_gate_logits);
      seen.mask(separate_gate_logits);
    }
    scores.enter_queries(gate_queries().columns);
    return seen;
  }

  // Dropout's row hashes of the vector of queries that starts at this lane.
  Hashes<T> hashed(const VisibleKeys<T>& seen, long lane) const {
    Hashes<T> rows;
    for (long n = 0; n < N; ++n) rows[n] = (b * p.heads + h) * p.keys + seen.place + lane + n;
    return hashed_rows(p.drop, rows);
  }

  // The stored log sum of a query.
  T& log_sum(long query) const {
    return static_cast<T*>(p.log_sum)[(b * p.heads + h) * p.queries + query];
  }

 private:
  void enter_keys(const Strided& from, T* to) {
    copy_rows(from.row<T>(b, h, 0), from.token, p.keys, p.width, T(1), to, stride);
  }
};
