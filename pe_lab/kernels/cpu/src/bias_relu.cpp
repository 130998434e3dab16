// Bias and ReLU of the rows of a matrix, and the backward pass; both in place.

#include <algorithm>

#include "parallel.h"
#include "simd.h"

struct BiasRelu {
  Fork fork;
  int64_t threads, rows, columns;
  int64_t parts;     // of the rows, the unit of parallel work
  void* x;           // (rows, columns), overwritten; in the backward pass the gradient
  const void* bias;  // (columns); null: the backward pass
  const void* out;   // (rows, columns): the forward's result; in the backward pass
  void* grad_bias;   // (parts, columns)
};

template <class T>
void forward(const BiasRelu& p, long row) {
  constexpr long N = Lanes<T>::count;
  T* const x = static_cast<T*>(p.x) + row * p.columns;
  const T* const bias = static_cast<const T*>(p.bias);
  long c = 0;
  for (; c + N <= p.columns; c += N) {
    const Vector<T> y = load(x + c) + load(bias + c);
    store(x + c, Vector<T>{} > y ? Vector<T>{} : y);
  }
  for (; c < p.columns; ++c) {
    const T y = x[c] + bias[c];
    x[c] = 0 > y ? 0 : y;
  }
}

// ``sum`` (columns) is added to.
template <class T>
void backward(const BiasRelu& p, long row, T* sum) {
  constexpr long N = Lanes<T>::count;
  T* const grad = static_cast<T*>(p.x) + row * p.columns;
  const T* const out = static_cast<const T*>(p.out) + row * p.columns;
  long c = 0;
  for (; c + N <= p.columns; c += N) {
    const Vector<T> through = load(out + c) <= 0 ? Vector<T>{} : load(grad + c);
    store(grad + c, through);
    store(sum + c, load(sum + c) + through);
  }
  for (; c < p.columns; ++c) {
    if (out[c] <= 0) grad[c] = 0;
    sum[c] += grad[c];
  }
}

template <class T>
int run(const BiasRelu& p) {
  const auto worker = [&](Tasks& tasks) {
    for (long part; (part = tasks.next()) >= 0;) {
      const long first = part * p.rows / p.parts, last = (part + 1) * p.rows / p.parts;
      T* const sum = static_cast<T*>(p.grad_bias) + part * p.columns;
      if (p.bias == nullptr) std::fill_n(sum, p.columns, T(0));
      for (long row = first; row < last; ++row)
        if (p.bias != nullptr)
          forward<T>(p, row);
        else
          backward<T>(p, row, sum);
    }
  };
  const Pool pool{p.fork, static_cast<int>(p.threads)};
  return in_parallel(pool, p.parts, worker) ? 0 : 1;
}

// 0, or 1 if there was too little memory.
extern "C" {
int bias_relu_float(const BiasRelu* p) { return run<float>(*p); }
int bias_relu_double(const BiasRelu* p) { return run<double>(*p); }
}
