// Dropout of the rows of a matrix, with an optional residual.

#include "dropout.h"

#include "parallel.h"

struct DropoutProblem {
  Fork fork;
  int64_t threads, rows, columns;
  Dropout drop;
  const int64_t* row_numbers;  // (rows); null: consecutive
  const void* x;               // (rows, columns)
  const void* residual;        // (rows, columns), added; null: none
  void* out;                   // (rows, columns)
};

constexpr long ROWS = 64;  // a task

template <class T>
void drop_row(const Dropout& drop, uint32_t row_number, long columns, const T* x, const T* residual,
              T* out) {
  constexpr long N = Lanes<T>::count;
  const uint32_t row = hashed_rows(drop, row_number);
  const T scale = static_cast<T>(drop.scale);
  const auto lanes = __builtin_convertvector(counting<T>(), Hashes<T>);
  long c = 0;
  for (; c + N <= columns; c += N) {
    const Integers<T> keep = kept<T>(drop, Hashes<T>{} + row, lanes + static_cast<uint32_t>(c));
    const Vector<T> y = keep ? load(x + c) * scale : Vector<T>{};
    store(out + c, residual == nullptr ? y : load(residual + c) + y);
  }
  for (; c < columns; ++c) {
    const T y = kept(drop, row, static_cast<uint32_t>(c)) ? x[c] * scale : T(0);
    out[c] = residual == nullptr ? y : residual[c] + y;
  }
}

template <class T>
int drop_rows(const DropoutProblem& p) {
  const auto worker = [&](Tasks& tasks) {
    for (long task; (task = tasks.next()) >= 0;)
      for (long r = task * ROWS; r < (task + 1) * ROWS && r < p.rows; ++r) {
        const long at = r * p.columns;
        const T* const residual = static_cast<const T*>(p.residual);
        drop_row(p.drop, static_cast<uint32_t>(p.row_numbers == nullptr ? r : p.row_numbers[r]),
                 p.columns, static_cast<const T*>(p.x) + at,
                 residual == nullptr ? nullptr : residual + at, static_cast<T*>(p.out) + at);
      }
  };
  const Pool pool{p.fork, static_cast<int>(p.threads)};
  return in_parallel(pool, (p.rows + ROWS - 1) / ROWS, worker) ? 0 : 1;
}

extern "C" {
int dropout_float(const DropoutProblem* p) { return drop_rows<float>(*p); }
int dropout_double(const DropoutProblem* p) { return drop_rows<double>(*p); }
}
