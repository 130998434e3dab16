// A branch, some of it dropped, added to the rows of a matrix, and the sum normalised; and back.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "dropout.h"
#include "parallel.h"

enum Norm : int64_t { NONE, LAYER, RMS };

struct AddNorm {
  Fork fork;
  int64_t threads, rows, columns;
  int64_t parts;  // of the rows, so that threads can share them
  int64_t norm;
  double eps;
  Dropout drop;
  const int64_t* row_numbers;       // (rows): where each row stands; null: in turn
  const void *x, *branch, *bias;    // (rows, columns), the same, (columns); no branch: null
  void* sum;                        // x + dropped(branch + bias); without a branch x itself
  const void *weight, *norm_bias;   // (columns), of the norm; RMS has no norm_bias
  void *out, *moments;              // (rows, columns); (rows, 2): mean, 1 / deviation
  const void *grad_sum, *grad_out;  // null: zero
  void *grad_x, *grad_branch;       // null: nobody wants it, or it is grad_x
  void* grads;                      // (3, parts, columns): of bias, weight and norm_bias
};

// f(c, count) for the numbers c .. c + count - 1 of a row: whole vectors, then what is left.
template <class T, class F>
inline void by_vectors(long columns, const F& f) {
  constexpr long N = Lanes<T>::count;
  long c = 0;
  for (; c + N <= columns; c += N) f(c, std::integral_constant<long, N>{});
  if (c < columns) f(c, columns - c);
}

// Zero in the lanes beyond ``count``.
template <class T>
inline Vector<T> take(const T* from, long count) {
  Vector<T> x = {};
  __builtin_memcpy(&x, from, count * sizeof(T));
  return x;
}

template <class T>
inline void put(T* to, Vector<T> x, long count) {
  __builtin_memcpy(to, &x, count * sizeof(T));
}

// What a row's elements become by dropout. A copy of what it needs: nothing stored can change it,
// so it stays in registers.
template <class T>
class RowDropout {
  const Dropout drop_;
  const T scale_;
  const Hashes<T> lanes_, row_;

 public:
  RowDropout(const AddNorm& p, long row)
      : drop_(p.drop),
        scale_(static_cast<T>(p.drop.scale)),
        lanes_(__builtin_convertvector(counting<T>(), Hashes<T>)),
        row_(Hashes<T>{} + hashed_rows(p.drop, static_cast<uint32_t>(p.row_numbers == nullptr
                                                                         ? row
                                                                         : p.row_numbers[row]))) {}

  Vector<T> operator()(Vector<T> x, long column) const {
    if (drop_.threshold == 0) return x;
    return kept<T>(drop_, row_, lanes_ + static_cast<uint32_t>(column)) ? x * scale_ : Vector<T>{};
  }
};

template <class T>
class Rows {
  using V = Vector<T>;
  const AddNorm& p_;

 public:
  explicit Rows(const AddNorm& p) : p_(p) {}

  void forward(long row) const {
    const T *const x = at(p_.x, row), *sum = x;
    V total = {};
    if (p_.branch == nullptr) {
      by_vectors<T>(p_.columns, [&](long c, auto count) { total += take(x + c, count); });
    } else {
      T* const to = at(p_.sum, row);
      const T *const branch = at(p_.branch, row), *const bias = at(p_.bias, 0);
      const RowDropout<T> dropped(p_, row);
      by_vectors<T>(p_.columns, [&](long c, auto count) {
        const V y = dropped(take(branch + c, count) + take(bias + c, count), c);
        const V here = take(x + c, count) + y;
        put(to + c, here, count);
        total += here;
      });
      sum = to;
    }
    if (p_.norm != NONE) normalise(row, sum, total);
  }

  // ``grad_bias``, ``grad_weight`` and ``grad_norm_bias`` (columns) are added to.
  void backward(long row, T* grad_bias, T* grad_weight, T* grad_norm_bias) const {
    const T* const grad_sum = at(p_.grad_sum, row);
    const T* const sum = at(p_.sum, row);
    const T *const grad_out = at(p_.grad_out, row), *const weight = at(p_.weight, 0);
    T *const grad_x = at(p_.grad_x, row), *const grad_branch = at(p_.grad_branch, row);
    T mean = 0, factor = 0, even = 0, along = 0;
    if (p_.norm != NONE) {
      mean = moments(row)[0];
      factor = moments(row)[1];
      V evens = {}, alongs = {};
      by_vectors<T>(p_.columns, [&](long c, auto count) {
        const V grad = take(grad_out + c, count);
        const V standard = (take(sum + c, count) - mean) * factor;
        const V slope = grad * take(weight + c, count);
        evens += slope;
        alongs += slope * standard;
        put(grad_weight + c, take(grad_weight + c, count) + grad * standard, count);
        put(grad_norm_bias + c, take(grad_norm_bias + c, count) + grad, count);
      });
      if (p_.norm == LAYER) even = total_of(evens) / p_.columns;
      along = total_of(alongs) / p_.columns;
    }
    const RowDropout<T> dropped(p_, row);
    const bool normed = p_.norm != NONE, has_branch = p_.bias != nullptr;
    by_vectors<T>(p_.columns, [&](long c, auto count) {
      V grad = {};
      if (normed) {
        const V standard = (take(sum + c, count) - mean) * factor;
        grad = factor *
               (take(grad_out + c, count) * take(weight + c, count) - even - standard * along);
      }
      if (grad_sum != nullptr) grad += take(grad_sum + c, count);
      put(grad_x + c, grad, count);
      if (!has_branch) return;
      const V through = dropped(grad, c);
      if (grad_branch != nullptr) put(grad_branch + c, through, count);
      put(grad_bias + c, take(grad_bias + c, count) + through, count);
    });
  }

 private:
  const T* at(const void* matrix, long row) const {
    return matrix == nullptr ? nullptr : static_cast<const T*>(matrix) + row * p_.columns;
  }
  T* at(void* matrix, long row) const {
    return matrix == nullptr ? nullptr : static_cast<T*>(matrix) + row * p_.columns;
  }
  T* moments(long row) const { return static_cast<T*>(p_.moments) + 2 * row; }

  void normalise(long row, const T* sum, V total) const {
    const T *const weight = at(p_.weight, 0), *const norm_bias = at(p_.norm_bias, 0);
    T* const out = at(p_.out, row);
    const T mean = p_.norm == LAYER ? total_of(total) / p_.columns : 0;
    V squares = {};
    by_vectors<T>(p_.columns, [&](long c, auto count) {
      const V off = take(sum + c, count) - mean;
      squares += counting<T>() < static_cast<int>(count) ? off * off : V{};
    });
    const T factor = 1 / std::sqrt(total_of(squares) / p_.columns + static_cast<T>(p_.eps));
    by_vectors<T>(p_.columns, [&](long c, auto count) {
      V y = (take(sum + c, count) - mean) * factor * take(weight + c, count);
      if (norm_bias != nullptr) y += take(norm_bias + c, count);
      put(out + c, y, count);
    });
    moments(row)[0] = mean;
    moments(row)[1] = factor;
  }

  // The sum of the lanes, halves first.
  static T total_of(V x) {
    T lane[Lanes<T>::count];
    __builtin_memcpy(lane, &x, sizeof x);
    for (int n = Lanes<T>::count / 2; n > 0; n /= 2)
      for (int i = 0; i < n; ++i) lane[i] += lane[i + n];
    return lane[0];
  }
};

template <class T>
int run(const AddNorm& p, bool back) {
  const auto worker = [&](Tasks& tasks) {
    const Rows<T> rows(p);
    for (long part; (part = tasks.next()) >= 0;) {
      const long first = part * p.rows / p.parts, last = (part + 1) * p.rows / p.parts;
      T* grads[3];
      for (int i = 0; i < 3 && back; ++i) {
        grads[i] = static_cast<T*>(p.grads) + (i * p.parts + part) * p.columns;
        std::fill_n(grads[i], p.columns, T(0));
      }
      for (long row = first; row < last; ++row)
        if (back)
          rows.backward(row, grads[0], grads[1], grads[2]);
        else
          rows.forward(row);
    }
  };
  const Pool pool{p.fork, static_cast<int>(p.threads)};
  return in_parallel(pool, p.parts, worker) ? 0 : 1;
}

// 0, or 1 if there was too little memory.
extern "C" {
int add_norm_float(const AddNorm* p) { return run<float>(*p, false); }
int add_norm_double(const AddNorm* p) { return run<double>(*p, false); }
int add_norm_backward_float(const AddNorm* p) { return run<float>(*p, true); }
int add_norm_backward_double(const AddNorm* p) { return run<double>(*p, true); }
}
