// Tables by distance, and blocks of logits as bands of them: a band has a row for each query (or
// key) of a block and a column for each distance that occurs in it.
#pragma once

#include "blocks.h"
#include "causal.h"

// Column c of a band is the distance ``ahead`` - (BLOCK - 1) + c; the last one is not used.
constexpr long BAND = 2 * BLOCK;

// The row of a scratch table of the distance of a band's column 0: tables have BAND rows of zeros
// before distance 0, for what is masked.
inline long first_row(long ahead) { return BAND + ahead - (BLOCK - 1); }

// A table (H, N, D) by distance, of one head; without numbers where there is none.
template <class T>
struct Table {
  static constexpr long N = Lanes<T>::count;
  const Strided from;
  const long width, stride, count, span;
  Scratch<T> rows, columns;

  Table(const Strided& from, long width, long count)
      : from(from),
        width(width),
        stride(round_up(width, N)),
        count(count),
        span(there() ? round_up(count + 2 * BAND, N) : 0),
        rows(span * stride),
        columns(span * width) {}

  bool there() const { return from.data != nullptr; }

  // rows for gradients: multiplied by row_factor; columns for products: by column_factor.
  void enter(long h, T row_factor, T column_factor) {
    if (!there()) return;
    std::fill_n(rows + 0, span * stride, T(0));
    std::fill_n(columns + 0, span * width, T(0));
    const T* const first = from.row<T>(0, h, 0);
    copy_rows(first, from.token, count, width, row_factor, rows + BAND * stride, stride);
    for (long n = 0; n < count; ++n)
      for (long d = 0; d < width; ++d)
        columns[d * span + BAND + n] = first[n * from.token + d] * column_factor;
  }
};

// The gradient of a table, as one head of one sequence adds to it.
template <class T>
struct TableGradient {
  const Strided to;
  const long width, stride, count, span;
  Scratch<T> rows;

  TableGradient(const Strided& to, long width, long count)
      : to(to),
        width(width),
        stride(round_up(width, Lanes<T>::count)),
        count(count),
        span(there() ? count + 2 * BAND : 0),
        rows(span * stride) {}

  bool there() const { return to.data != nullptr; }
  void clear() { std::fill_n(rows + 0, span * stride, T(0)); }

  void write(long b, long h, long part, T factor) const {
    for (long n = 0; there() && n < count; ++n)
      copy_row(rows + (BAND + n) * stride, width, factor, to.row<T>(b, h, n, part));
  }
};

// A block as a band. Row i has its numbers from column i on; with ``of_keys``, rows are keys, and
// row i has them from column BLOCK - 1 - i on. The other columns are zero.
template <class T, bool of_keys>
class Band {
  static constexpr long N = Lanes<T>::count;
  typedef Vector<T> Tile[N];
  Scratch<T> products_, band_;

 public:
  explicit Band(bool used) : products_(used ? BLOCK * BAND : 0), band_(used ? BLOCK * BAND : 0) {
    if (used) std::fill_n(band_ + 0, BLOCK * BAND, T(0));
    if (used) std::fill_n(products_ + 0, BLOCK * BAND, T(0));
  }

  // x[key, query] += rows[i] . table[distance], i the query or the key.
  void add_products(const BlockPair<T>& pair, const T* rows, long row_stride, const Table<T>& table,
                    T* x) {
    by_rows(pair, [&](long row, long count, long column, long columns) {
      for (long r = row; r < row + count; ++r)
        std::fill(products_ + r * BAND + first(row), products_ + r * BAND + column, T(0));
      multiply<T>(count, columns, table.width, rows + row * row_stride, row_stride, 1,
                  table.columns + first_row(pair.ahead) + column, table.span,
                  products_ + row * BAND + column, BAND, false);
    });
    // Lanes of queries that are not there stay finite.
    const long rows_there = of_keys ? BLOCK : pair.queries;
    std::fill(products_ + rows_there * BAND, products_ + BLOCK * BAND, T(0));
    for (long query = 0; query < BLOCK; query += N)
      for (long key = 0; key < pair.visible(query / N); key += N) {
        Tile tile;
        unpack(query, key, tile);
        for (long l = 0; l < N; ++l) {
          T* const to = x + (key + l) * BLOCK + query;
          store(to, load(to) + tile[l]);
        }
      }
  }

  // Makes the block x[key, query] a band. limit(vector): from which key on x is zero for a vector
  // of queries.
  template <class Limit>
  void enter(const T* x, const Limit& limit) {
    for (long query = 0; query < BLOCK; query += N)
      for (long key = 0; key < BLOCK; key += N) {
        Tile tile;
        for (long l = 0; l < N; ++l)
          tile[l] = key + l < limit(query / N) ? load(x + (key + l) * BLOCK + query) : Vector<T>{};
        pack(query, key, tile);
      }
  }

  // to[i] += sum over the distances of band[i, distance] table[distance]
  void times_table(const BlockPair<T>& pair, const Table<T>& table, T* to) const {
    by_rows(pair, [&](long row, long count, long column, long columns) {
      multiply<T>(count, table.stride, columns, band_ + row * BAND + column, BAND, 1,
                  table.rows + (first_row(pair.ahead) + column) * table.stride, table.stride,
                  to + row * table.stride, table.stride, true);
    });
  }

  // to[distance] += sum over i of band[i, distance] rows[i]
  void times_rows(const BlockPair<T>& pair, const T* rows, const TableGradient<T>& to) const {
    by_rows(pair, [&](long row, long count, long column, long columns) {
      multiply<T>(columns, to.stride, count, band_ + row * BAND + column, 1, BAND,
                  rows + row * to.stride, to.stride,
                  to.rows + (first_row(pair.ahead) + column) * to.stride, to.stride, true);
    });
  }

 private:
  // The first column in which one of N rows has a number; there are less than BLOCK + N.
  static long first(long row) { return of_keys ? BLOCK - N - row : row; }

  // f(row, count, column, columns): the columns of these rows whose distances are 0 or more.
  template <class F>
  static void by_rows(const BlockPair<T>& pair, const F& f) {
    const long all = of_keys ? pair.keys : pair.queries;
    const long visible = std::max(0L, BLOCK - 1 - pair.ahead) / N * N;
    for (long row = 0; row < all; row += N) {
      const long end = first(row) + BLOCK + N, column = std::min(std::max(first(row), visible), end);
      f(row, std::min(N, all - row), column, end - column);
    }
  }

  // Row l of a tile has key + l, its lanes are the queries from ``query`` on.
  void unpack(long query, long key, Tile& to) const {
    const T* const from = products_ + BLOCK - 1;
    if (of_keys) {
      for (long l = 0; l < N; ++l) to[l] = load(from + (key + l) * BAND + query - key - l);
      return;
    }
    for (long q = 0; q < N; ++q)
      to[q] = load(from + (query + q) * BAND + query + q - key - (N - 1));
    transpose<T>(to);
    for (long l = 0; l < N / 2; ++l) std::swap(to[l], to[N - 1 - l]);
  }

  void pack(long query, long key, Tile& from) {
    T* const to = band_ + BLOCK - 1;
    if (of_keys) {
      for (long l = 0; l < N; ++l) store(to + (key + l) * BAND + query - key - l, from[l]);
      return;
    }
    for (long l = 0; l < N / 2; ++l) std::swap(from[l], from[N - 1 - l]);
    transpose<T>(from);
    for (long q = 0; q < N; ++q)
      store(to + (query + q) * BAND + query + q - key - (N - 1), from[q]);
  }
};
