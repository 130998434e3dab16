// Causal attention with a bias that depends on (head, distance), forward and backward, without a
// (T, S) matrix: logits of query i and key j <= i are q_i . k_j / sqrt(D) + bias[i - j].

#include "distance_backward.h"
#include "distance_forward.h"

template <class Pass>
int in_every_head(const Distance& p) {
  // All sequences add to the gradient of one bias of pairs.
  const long together = p.grad_pairs != nullptr ? std::max<long>(1, p.batch) : 1;
  const auto worker = [&](Tasks& tasks) {
    Pass pass(p);
    for (long task; (task = tasks.next()) >= 0;)
      for (long b = 0; b < together; ++b)
        pass.head(b * p.heads + task / p.parts, task % p.parts);
  };
  const Pool pool{p.fork, static_cast<int>(p.threads)};
  return in_parallel(pool, p.batch / together * p.heads * p.parts, worker) ? 0 : 1;
}

// 0, or 1 if there was too little memory.
extern "C" {
int distance_forward_float(const Distance* p) { return in_every_head<DistanceForward<float>>(*p); }
int distance_forward_double(const Distance* p) {
  return in_every_head<DistanceForward<double>>(*p);
}
int distance_backward_float(const Distance* p) {
  return in_every_head<DistanceBackward<float>>(*p);
}
int distance_backward_double(const Distance* p) {
  return in_every_head<DistanceBackward<double>>(*p);
}
}
