// The heart of CoPE: gates counted from a query's own key to the left, and scores looked up there.
//
// A gate is at most 1, so the whole part of a position moves by at most one a key, and of the two
// scores around a position one was known at the key before.
#pragma once

#include <type_traits>

#include "cope_block.h"
#include "sigmoid.h"

// Scores z[p] = query . e[p] of a block's queries at the whole positions p, (positions + 1, ROWS).
// They are made as far as they are asked for: few queries ever count to the last position. One more
// row repeats the last, beyond which the slope is zero.
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

  // Make the scores below position ``count``, and zeros as their gradients.
  void need(long count) {
    if (count <= ready || ready > positions) return;
    const long first = ready;
    ready = std::min(whole(count, 8), positions);
    multiply<T>(ready - first, ROWS, stride, table + first * stride, stride, 1, columns, ROWS,
                at + first * ROWS, ROWS, false);
    if (ready == positions) {
      std::copy_n(at + (ready - 1) * ROWS, ROWS, at + ready * ROWS);
      ++ready;
    }
    std::fill(grad + first * ROWS, grad + ready * ROWS, T(0));
  }

  // How many positions have gradients, once the row beyond has given its own to the last.
  long finish_gradients() {
    if (ready <= positions) return ready;
    for (long r = 0; r < ROWS; ++r) grad[(positions - 1) * ROWS + r] += grad[positions * ROWS + r];
    return positions;
  }
};

// The positions of a vector of queries at the next few keys, from their own key to the left.
template <class T>
class Positions {
 public:
  static constexpr long N = Lanes<T>::count, MOST = 32;
  using Integer = std::remove_reference_t<decltype(Integers<T>{}[0])>;

  alignas(64) T gate[MOST * N], fraction[MOST * N], above[MOST * N];
  // Where the score at the whole position is, among the block's.
  alignas(64) Integer place[MOST * N];

  // Stand before a query's own key, in the vector from this lane on.
  Positions(long lane, const Scores<T>& scores)
      : place_(counting<T>() + Integer(lane)),
        last_(place_ + Integer((scores.positions - 1) * ROWS)),
        all_last_(scores.positions == 1) {}

  // Go on to ``count`` keys; the logits of the next one's gates stand at ``logits``, of the
  // following ones before them.
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

  // to[place] = numbers; of the keys of one place the last one's number stays.
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

  // f(n) for all numbers of ``count`` keys. What f writes is volatile: compilers would collect
  // single numbers into vectors, which takes longer than to move each by itself.
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

  // Go on to the n-th of the keys entered; the score there. True in the lanes of ``stays`` where
  // the whole position is the one before.
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
