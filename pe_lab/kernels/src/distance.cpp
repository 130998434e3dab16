// Causal attention with a bias that depends on (head, distance), forward and backward, without a
// (T, S) matrix: logits of query i and key j <= i are q_i . k_j / sqrt(D) + bias[i - j].

#include "distance_backward.h"
#include "distance_forward.h"

// 0, or 1 if there was too little memory.
extern "C" {
int distance_forward_float(const Distance* p) { return in_every_head<DistanceForward<float>>(*p); }
int distance_forward_double(const Distance* p) { return in_every_head<DistanceForward<double>>(*p); }
int distance_backward_float(const Distance* p) { return in_every_head<DistanceBackward<float>>(*p); }
int distance_backward_double(const Distance* p) {
  return in_every_head<DistanceBackward<double>>(*p);
}
}
