// PaTH within chunks of tokens: every chunk of every head (path_chunk.h).

#include "path_chunk.h"

template <class T>
int in_every_chunk(const Chunks& p) {
  const auto worker = [&](Tasks& tasks) {
    Chunk<T> chunk(p);
    for (long task; (task = tasks.next()) >= 0;)
      if (p.grad_beta == nullptr)
        chunk.forward(task);
      else
        chunk.backward(task);
  };
  const Pool pool{p.fork, static_cast<int>(p.threads)};
  const long chunks = (p.keys + CHUNK - 1) / CHUNK;
  return in_parallel(pool, p.batch * p.heads * chunks, worker) ? 0 : 1;
}

// 0, or 1 if there was too little memory.
extern "C" {
int path_chunks_float(const Chunks* p) { return in_every_chunk<float>(*p); }
int path_chunks_double(const Chunks* p) { return in_every_chunk<double>(*p); }
}
