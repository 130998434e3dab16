// Attention with contextual positions (pe_lab/pe/cope.py), forward and backward, without a (T, S)
// or a (T, positions) matrix.

#include "cope_backward.h"
#include "cope_forward.h"

template <class T>
Scratch<T> scaled_table(const Cope& p) {
  const long stride = round_up(p.width, Lanes<T>::count);
  Scratch<T> table(p.positions * stride);
  copy_rows(p.table.row<T>(0, 0, 0), p.table.token, p.positions, p.width, T(p.table_scale()),
            table + 0, stride);
  return table;
}

template <class T>
int forward(const Cope& p) try {
  const Scratch<T> table = scaled_table<T>(p);
  const auto worker = [&](Tasks& tasks) {
    CopeForward<T> pass(p, table);
    for (long task; (task = tasks.next()) >= 0;) pass.run(task);
  };
  const Pool pool{p.fork, static_cast<int>(p.threads)};
  return in_parallel(pool, p.batch * p.heads * p.parts, worker) ? 0 : 1;
} catch (const std::bad_alloc&) {
  return 1;
}

template <class T>
int backward(const Cope& p) try {
  const Scratch<T> table = scaled_table<T>(p);
  const long stride = round_up(p.width, Lanes<T>::count), size = p.positions * stride;
  const long pieces = p.batch * p.heads * p.parts;
  const auto worker = [&](Tasks& tasks) {
    CopeBackward<T> pass(p, table);
    Scratch<T> grad_table(size);
    for (long chunk; (chunk = tasks.next()) >= 0;) {
      std::fill_n(grad_table + 0, size, T(0));
      const long end = pieces * (chunk + 1) / p.chunks;
      for (long piece = pieces * chunk / p.chunks; piece < end; ++piece)
        pass.run(piece, grad_table);
      store_rows(grad_table + 0, stride, p.grad_table, 0, 0, 0, p.positions, chunk, p.width,
                 p.table_scale() * LN_2);
    }
  };
  const Pool pool{p.fork, static_cast<int>(p.threads)};
  return in_parallel(pool, p.chunks, worker) ? 0 : 1;
} catch (const std::bad_alloc&) {
  return 1;
}

// 0, or 1 if there was too little memory.
extern "C" {
int cope_forward_float(const Cope* p) { return forward<float>(*p); }
int cope_forward_double(const Cope* p) { return forward<double>(*p); }
int cope_backward_float(const Cope* p) { return backward<float>(*p); }
int cope_backward_double(const Cope* p) { return backward<double>(*p); }
}
