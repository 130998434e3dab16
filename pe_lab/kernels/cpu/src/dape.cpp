// Causal attention with the logits of DAPE, forward and backward, without a (T, S) matrix. All heads
// of a sequence go together, block by block: a small network reads their products at a query and a
// key, and adds to the logits of each.

#include <vector>

#include "distance_backward.h"
#include "distance_forward.h"

struct Dape {
  Distance attention;
  int64_t units;
  const void* from_content;  // (units, heads)
  const void* by_distance;   // (units, keys): what bias and constant add at each distance
  const void* out;           // (units, heads)
  // (parts, batch, ..) of the same shapes.
  void *grad_from_content, *grad_by_distance, *grad_out;
};

// logits_h += sum over units n of out[n, h] leaky(by_distance[n, i - j] + from_content[n] . products)
template <class T, int H>
class Network {
  static constexpr long N = Lanes<T>::count;
  static constexpr T LEAK = T(0.01);
  const Dape& p_;
  const long units_, keys_, span_;
  // Products and logits are to the base 2: so are weights for them, beside those for gradients.
  Scratch<T> in_, out_, out2_, table_;
  Scratch<T> grad_in_, grad_out_, grad_table_;

 public:
  Network(const Dape& p, bool backward)
      : p_(p),
        units_(p.units),
        keys_(p.attention.keys),
        span_(keys_ + 4 * BLOCK),
        in_(units_ * H),
        out_(units_ * H),
        out2_(units_ * H),
        table_(units_ * span_),
        grad_in_(backward ? units_ * H * N : 0),
        grad_out_(backward ? units_ * H * N : 0),
        grad_table_(backward ? units_ * span_ : 0) {
    const T* const table = static_cast<const T*>(p.by_distance);
    std::fill_n(table_ + 0, units_ * span_, T(0));
    for (long n = 0; n < units_; ++n)
      std::copy_n(table + n * keys_, keys_, table_ + n * span_ + 2 * BLOCK);
    copy_row(static_cast<const T*>(p.from_content), units_ * H, T(1 / LOG2_E), in_ + 0);
    copy_row(static_cast<const T*>(p.out), units_ * H, T(1), out_ + 0);
    copy_row(static_cast<const T*>(p.out), units_ * H, T(LOG2_E), out2_ + 0);
  }

  void clear() {
    std::fill_n(grad_in_ + 0, units_ * H * N, T(0));
    std::fill_n(grad_out_ + 0, units_ * H * N, T(0));
    std::fill_n(grad_table_ + 0, units_ * span_, T(0));
  }

  void add(const BlockPair<T>& pair, T* const (&x)[H]) const {
    each(pair, [&](long at, long distance) {
      Vector<T> product[H], logit[H];
      for (int h = 0; h < H; ++h) logit[h] = product[h] = load(x[h] + at);
      const T* const table = table_ + distance;
      for (long n = 0; n < units_; ++n) {
        Vector<T> unit = load(table + n * span_);
        for (int h = 0; h < H; ++h) unit += product[h] * in_[n * H + h];
        unit = unit > 0 ? unit : unit * LEAK;
        for (int h = 0; h < H; ++h) logit[h] += unit * out2_[n * H + h];
      }
      for (int h = 0; h < H; ++h) store(x[h] + at, logit[h]);
    });
  }

  // Adds the network's part to the gradients, from those of the logits to those of the products.
  void differentiate(const BlockPair<T>& pair, const T* const (&x)[H], T* const (&slopes)[H]) {
    each(pair, [&](long at, long distance) {
      Vector<T> product[H], slope[H], total[H];
      for (int h = 0; h < H; ++h) {
        product[h] = load(x[h] + at);
        total[h] = slope[h] = load(slopes[h] + at);
      }
      for (long n = 0; n < units_; ++n) {
        Vector<T> unit = load(table_ + n * span_ + distance), back = {};
        for (int h = 0; h < H; ++h) unit += product[h] * in_[n * H + h];
        for (int h = 0; h < H; ++h) back += slope[h] * out_[n * H + h];
        const Integers<T> positive = unit > 0;
        unit = positive ? unit : unit * LEAK;
        back = positive ? back : back * LEAK;
        T* const of_table = grad_table_ + n * span_ + distance;
        store(of_table, load(of_table) + back);
        T* const of_in = grad_in_ + n * H * N;
        T* const of_out = grad_out_ + n * H * N;
        for (int h = 0; h < H; ++h) {
          total[h] += back * in_[n * H + h];
          store(of_in + h * N, load(of_in + h * N) + back * product[h]);
          store(of_out + h * N, load(of_out + h * N) + unit * slope[h]);
        }
      }
      for (int h = 0; h < H; ++h) store(slopes[h] + at, slope[h] + (total[h] - slope[h]) * T(LOG2_E));
    });
  }

  // index: of the sequence and part.
  void write(long index) const {
    T* const of_in = static_cast<T*>(p_.grad_from_content) + index * units_ * H;
    T* const of_out = static_cast<T*>(p_.grad_out) + index * units_ * H;
    for (long n = 0; n < units_ * H; ++n) {
      of_in[n] = sum<T>(load(grad_in_ + n * N)) * T(1 / LOG2_E);
      of_out[n] = sum<T>(load(grad_out_ + n * N));
    }
    T* const of_table = static_cast<T*>(p_.grad_by_distance) + index * units_ * keys_;
    for (long n = 0; n < units_; ++n)
      std::copy_n(grad_table_ + n * span_ + 2 * BLOCK, keys_, of_table + n * keys_);
  }

 private:
  // f(index in the block, that of the first lane's distance in the table)
  template <class F>
  static void each(const BlockPair<T>& pair, const F& f) {
    for (long vector = 0; vector < BLOCK / N; ++vector)
      for (long key = 0; key < pair.visible(vector); ++key)
        f(key * BLOCK + vector * N, 2 * BLOCK + pair.ahead + vector * N - key);
  }
};

template <class T, int H>
struct Forward {
  const Distance& p;
  Network<T, H> network;
  std::vector<std::unique_ptr<DistanceForward<T>>> heads;

  explicit Forward(const Dape& all) : p(all.attention), network(all, false) {
    for (int h = 0; h < H; ++h) heads.push_back(std::make_unique<DistanceForward<T>>(p));
  }

  void sequence(long b, long part) {
    for (int h = 0; h < H; ++h) heads[h]->enter(b * H + h);
    for (long query = part * BLOCK; query < p.queries; query += p.parts * BLOCK) {
      const long count = std::min<long>(BLOCK, p.queries - query);
      const long index = p.keys - p.queries + query;
      for (auto& head : heads) head->enter_queries(query);
      for (long key = 0; key < index + count; key += BLOCK) {
        const BlockPair<T> pair(index, count, key, p.keys);
        T* x[H];
        for (int h = 0; h < H; ++h) x[h] = heads[h]->compare(pair, query, key);
        network.add(pair, x);
        for (auto& head : heads) head->average(pair, key);
      }
      for (auto& head : heads) head->finish(query);
    }
  }
};

template <class T, int H>
struct Backward {
  const Distance& p;
  Network<T, H> network;
  std::vector<std::unique_ptr<DistanceBackward<T>>> heads;
  Scratch<T> products{H * BLOCK * BLOCK};

  explicit Backward(const Dape& all) : p(all.attention), network(all, true) {
    for (int h = 0; h < H; ++h) heads.push_back(std::make_unique<DistanceBackward<T>>(p));
  }

  void sequence(long b, long part) {
    network.clear();
    for (int h = 0; h < H; ++h) heads[h]->enter(b * H + h);
    for (long query = 0; query < p.queries; query += BLOCK) {
      const long count = std::min<long>(BLOCK, p.queries - query);
      const long index = p.keys - p.queries + query;
      for (auto& head : heads) head->enter_queries(query);
      for (long key = part * BLOCK; key < index + count; key += p.parts * BLOCK)
        block(BlockPair<T>(index, count, key, p.keys), query, key);
      for (auto& head : heads) head->finish_queries(query, part);
    }
    for (int h = 0; h < H; ++h) heads[h]->finish(b * H + h, part);
    network.write(part * p.batch + b);
  }

  void block(const BlockPair<T>& pair, long query, long key) {
    T *x[H], *slopes[H];
    const T* kept[H];
    for (int h = 0; h < H; ++h) {
      x[h] = heads[h]->compare(pair, query, key);
      kept[h] = std::copy_n(x[h], pair.keys * BLOCK, products + h * BLOCK * BLOCK) -
                pair.keys * BLOCK;
    }
    network.add(pair, x);
    for (int h = 0; h < H; ++h) slopes[h] = heads[h]->differentiate(pair, query, key);
    network.differentiate(pair, kept, slopes);
    for (auto& head : heads) head->accumulate(pair, query, key);
  }
};

template <class Pass>
int in_every_sequence(const Dape& p) {
  const long parts = p.attention.parts;
  const auto worker = [&](Tasks& tasks) {
    Pass pass(p);
    for (long task; (task = tasks.next()) >= 0;) pass.sequence(task / parts, task % parts);
  };
  const Pool pool{p.attention.fork, static_cast<int>(p.attention.threads)};
  return in_parallel(pool, p.attention.batch * parts, worker) ? 0 : 1;
}

// 0; 1 if there was too little memory; 2 for another number of heads.
template <class T, template <class, int> class Pass>
int with_heads(const Dape& p) {
  switch (p.attention.heads) {
    case 1: return in_every_sequence<Pass<T, 1>>(p);
    case 2: return in_every_sequence<Pass<T, 2>>(p);
    case 4: return in_every_sequence<Pass<T, 4>>(p);
    case 8: return in_every_sequence<Pass<T, 8>>(p);
  }
  return 2;
}

extern "C" {
int dape_forward_float(const Dape* p) { return with_heads<float, Forward>(*p); }
int dape_forward_double(const Dape* p) { return with_heads<double, Forward>(*p); }
int dape_backward_float(const Dape* p) { return with_heads<float, Backward>(*p); }
int dape_backward_double(const Dape* p) { return with_heads<double, Backward>(*p); }
}
