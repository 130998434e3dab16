// Pairs of features turned as the numbers of a complex plane: (a + bi) (cos + i sin).

#include "blocks.h"
#include "team.h"

struct Turned {
  Fork fork;
  int64_t threads, batch, heads, tokens, width;
  int64_t halves;  // 1: pairs are features m and m + width / 2; 0: 2m and 2m + 1
  int64_t back;    // 1: turned by the conjugate, as gradients are
  Strided x, out;  // (B, H, T, D)
  Strided turn;    // (B, H, T, D): cos and sin of pair 0, of pair 1, ..
};

constexpr long TOKENS = 64;  // a task

// Lane l of the result is lane (l & keep) ^ flip of x.
template <class T, int keep, int flip, int... lane>
inline Vector<T> picked(Vector<T> x, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, x, ((lane & keep) ^ flip)...);
#else
  return __builtin_shuffle(x, Integers<T>{((lane & keep) ^ flip)...});
#endif
}

template <class T>
class Turner {
  static constexpr long N = Lanes<T>::count;
  const Turned& p_;
  const T sign_;
  Vector<T> signs_;  // of the sines: the first of a pair loses what the second gains
  Scratch<T> cos_, sin_;

 public:
  explicit Turner(const Turned& p)
      : p_(p), sign_(p.back ? -1 : 1), cos_(p.width / 2), sin_(p.width / 2) {
    for (long lane = 0; lane < N; ++lane) signs_[lane] = lane % 2 ? sign_ : -sign_;
  }

  void token(long b, long t) {
    for (long h = 0; h < p_.heads; ++h) {
      const T* const turn = p_.turn.row<T>(b, h, t);
      if (p_.halves && (h == 0 || p_.turn.head != 0)) take_apart(turn);
      const T* const x = p_.x.row<T>(b, h, t);
      T* const out = p_.out.row<T>(b, h, t);
      if (p_.halves)
        in_halves(x, out);
      else
        neighbours(x, turn, out);
    }
  }

 private:
  void neighbours(const T* x, const T* turn, T* out) const {
    constexpr auto lanes = std::make_integer_sequence<int, N>{};
    long d = 0;
    for (; d + N <= p_.width; d += N) {
      const Vector<T> here = load(x + d), by = load(turn + d);
      const Vector<T> cos = picked<T, ~1, 0>(by, lanes), sin = picked<T, ~1, 1>(by, lanes);
      store(out + d, here * cos + picked<T, ~0, 1>(here, lanes) * (sin * signs_));
    }
    for (; d < p_.width; d += 2) {
      const T cos = turn[d], sin = turn[d + 1] * sign_, a = x[d], b = x[d + 1];
      out[d] = a * cos - b * sin;
      out[d + 1] = b * cos + a * sin;
    }
  }

  void take_apart(const T* turn) {
    for (long m = 0; m < p_.width / 2; ++m) {
      cos_[m] = turn[2 * m];
      sin_[m] = turn[2 * m + 1] * sign_;
    }
  }

  void in_halves(const T* x, T* out) const {
    const long half = p_.width / 2;
    long m = 0;
    for (; m + N <= half; m += N) {
      const Vector<T> cos = load(cos_ + m), sin = load(sin_ + m);
      const Vector<T> a = load(x + m), b = load(x + half + m);
      store(out + m, a * cos - b * sin);
      store(out + half + m, b * cos + a * sin);
    }
    for (; m < half; ++m) {
      const T a = x[m], b = x[half + m];
      out[m] = a * cos_[m] - b * sin_[m];
      out[half + m] = b * cos_[m] + a * sin_[m];
    }
  }
};

template <class T>
int turn(const Turned& p) {
  const long blocks = (p.tokens + TOKENS - 1) / TOKENS;
  const auto worker = [&](Tasks& tasks) {
    Turner<T> turner(p);
    for (long task; (task = tasks.next()) >= 0;) {
      const long first = task % blocks * TOKENS;
      for (long t = first; t < first + TOKENS && t < p.tokens; ++t)
        turner.token(task / blocks, t);
    }
  };
  const Team team{p.fork, static_cast<int>(p.threads)};
  return in_parallel(team, p.batch * blocks, worker) ? 0 : 1;
}

// 0, or 1 if there was too little memory.
extern "C" {
int turned_float(const Turned* p) { return turn<float>(*p); }
int turned_double(const Turned* p) { return turn<double>(*p); }
}
