// CoPE's positions, sums of gates from a query's own key to the left, and the scores at them.
//
// A gate is at most 1, so the integer part of a position grows by at most one per key, and one of
// the two scores around a position is known from the previous key.
#pragma once

#include <type_traits>

#include "cope_block.h"
#include "sigmoid.h"

// Scores z[p] = query . e[p] of a block of queries at the integer positions p,
// (positions + 1, ROWS). They are computed only as far as needed: few queries ever reach the last
// position. An extra row repeats the last one, so that the slope beyond it is zero.
template <class T>
struct Scores {
  const T* const table;
  const long positions, stride;
  Scratch<T> at, grad;
  const T* columns = nullptr;
  long ready = 0;

  Scores(const T* table, long positions, long stride)
      : table(table),
        positions(positions),
        stride(stride),
        at((positions + 1) * ROWS),
        grad((positions + 1) * ROWS) {}

  void enter_queries(const T* of_queries) {
    columns = of_queries;
    ready = 0;
    need(2);
  }

  // Compute the scores below position ``count``, and clear their gradients.
  void need(long count) {
    if (count <= ready || ready > positions) return;
    const long first = ready;
    ready = std::min(round_up(count, 8), positions);
    multiply<T>(ready - first, ROWS, stride, table + first * stride, stride, 1, columns, ROWS,
                at + first * ROWS, ROWS, false);
    if (ready == positions) {
      std::copy_n(at + (ready - 1) * ROWS, ROWS, at + ready * ROWS);
      ++ready;
    }
    std::fill(grad + first * ROWS, grad + ready * ROWS, T(0));
  }

  // Adds the gradient of the extra row to the last position; returns the number of positions that
  // have gradients.
  long finish_gradients() {
    if (ready <= positions) return ready;
    for (long r = 0; r < ROWS; ++r) grad[(positions - 1) * ROWS + r] += grad[positions * ROWS + r];
    return positions;
  }
};

// The positions of a vector of queries at the next few keys, from each query's own key to the left.
template <class T>
class Positions {
 public:
  static constexpr long N = Lanes<T>::count, MOST = 32;
  using Integer = std::remove_reference_t<decltype(Integers<T>{}[0])>;

  alignas(64) T gate[MOST * N], fraction[MOST * N], above[MOST * N];
  // The index of the score at the integer position, in the block's scores.
  alignas(64) Integer place[MOST * N];

  // Start before each query's own key, for the vector that starts at this lane.
  Positions(long lane, const Scores<T>& scores)
      : place_(counting<T>() + Integer(lane)),
        last_(place_ + Integer((scores.positions - 1) * ROWS)),
        all_last_(scores.positions == 1) {}

  // Advance by ``count`` keys; ``logits`` points to the gate logits of the next key, those of the
  // following keys are stored before it.
  void enter_keys(const T* logits, long count, Scores<T>& scores) {
    count_gates(logits, count);
    const Integer* const now = place + (count - 1) * N;
    Integer least = now[0], most = now[0];
    for (long lane = 1; lane < N; ++lane) {
      least = std::min(least, now[lane]);
      most = std::max(most, now[lane]);
    }
    all_last_ = least / ROWS == scores.positions - 1;
    scores.need(most / ROWS + 2);
    look_up(scores.at + ROWS, count);
  }

  bool all_last() const { return all_last_; }

  // to[place] = numbers; of several keys with the same place the last number remains.
  void write(const T* numbers, long count, T* to) const {
    one_by_one(count, [=](long n) { const_cast<volatile T&>(to[place[n]]) = numbers[n]; });
  }

 private:
  Vector<T> part_ = {};
  Integers<T> place_, last_;
  bool all_last_;

  void count_gates(const T* logits, long count) {
    Vector<T> part = part_;
    Integers<T> at = place_;
    const Integers<T> last = last_;
    for (long n = 0; n < count; ++n) {
      const Vector<T> open = sigmoid<T>(load(logits - n * ROWS));
      part += open;
      const Integers<T> carry = part >= 1;
      part = carry ? part - 1 : part;
      at = carry ? at + Integer(ROWS) : at;
      at = at > last ? last : at;
      store(gate + n * N, open);
      store(fraction + n * N, part);
      __builtin_memcpy(place + n * N, &at, sizeof at);
    }
    part_ = part;
    place_ = at;
  }

  void look_up(const T* from, long count) {
    one_by_one(count, [=](long n) { const_cast<volatile T&>(above[n]) = from[place[n]]; });
  }

  // Calls f(n) for all numbers of ``count`` keys. f writes through volatile: compilers would
  // collect the scalars into vectors, which is slower than moving each by itself.
  template <class F>
  static void one_by_one(long count, const F& f) {
    for (long key = 0; key < count; ++key)
#pragma GCC unroll 16
      for (long lane = 0; lane < N; ++lane) f(key * N + lane);
  }
};

// The scores around the positions of a vector of queries, key after key.
template <class T>
struct Around {
  static constexpr long N = Lanes<T>::count;
  Integers<T> place;
  Vector<T> below, above, slope = {}, fraction = {};

  Around(const T* scores, long lane)
      : place(counting<T>() + typename Positions<T>::Integer(lane)),
        below(load(scores + lane)),
        above(load(scores + lane + ROWS)) {}

  // Advance to the n-th entered key and return its score. ``stays`` is true in the lanes where the
  // integer position is that of the previous key.
  Vector<T> enter_key(const Positions<T>& positions, long n, Integers<T>& stays) {
    Integers<T> now;
    __builtin_memcpy(&now, positions.place + n * N, sizeof now);
    stays = now == place;
    place = now;
    below = stays ? below : above;
    above = load(positions.above + n * N);
    slope = above - below;
    fraction = load(positions.fraction + n * N);
    return below + fraction * slope;
  }
};
