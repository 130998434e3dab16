// Queries or keys turned, pair by pair of their features.

#include "rotary.h"

#include <algorithm>

#include "parallel.h"

struct RotaryProblem {
  Fork fork;
  int64_t threads, batch, heads, tokens, width;
  int64_t back;    // 1: turned by the conjugate, as gradients are
  Strided x, out;  // (B, H, T, D)
  Rotary rotary;
};

constexpr long TOKENS = 64;  // a task

template <class T>
int rotate(const RotaryProblem& p) {
  const long blocks = (p.tokens + TOKENS - 1) / TOKENS;
  const auto worker = [&](Tasks& tasks) {
    for (long task; (task = tasks.next()) >= 0;) {
      const long b = task / blocks, first = task % blocks * TOKENS;
      const long rows = std::min(TOKENS, p.tokens - first);
      for (long h = 0; h < p.heads; ++h)
        rotate_rows(p.rotary, b, h, first, p.back != 0, T(1), rows, p.width,
                    p.x.row<T>(b, h, first), p.x.token, p.out.row<T>(b, h, first), p.out.token);
    }
  };
  const Pool pool{p.fork, static_cast<int>(p.threads)};
  return in_parallel(pool, p.batch * blocks, worker) ? 0 : 1;
}

// 0, or 1 if there was too little memory.
extern "C" {
int rotary_float(const RotaryProblem* p) { return rotate<float>(*p); }
int rotary_double(const RotaryProblem* p) { return rotate<double>(*p); }
}
