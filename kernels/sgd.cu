// Stochastic gradient descent.

#include "elementwise.cuh"

// The hyper-parameters, in the order of the rule's.
enum { LEARNING_RATE, WEIGHT_DECAY, MOMENTUM, DAMPENING, NESTEROV };
enum { SIZE, PENALTY, ADD };

struct Step {
    static __device__ void coefficients(const double *hyper, const Entry &entry, uint64_t step, double *into) {
        into[SIZE] = entry.learning_rate;
        into[PENALTY] = entry.weight_decay;
        into[ADD] = step == 1 ? 1 : 1 - hyper[DAMPENING];
    }
};

template <typename C> struct Sgd {
    C size, penalty, momentum, add;
    bool has_momentum, is_nesterov;

    __device__ Sgd(const double *hyper, const double *values)
        : size((C)values[SIZE]), penalty((C)values[PENALTY]), momentum((C)hyper[MOMENTUM]), add((C)values[ADD]),
          has_momentum(hyper[MOMENTUM] != 0), is_nesterov(hyper[NESTEROV] != 0) {}

    __device__ __forceinline__ void update(C &p, C g, C &b, C &) const {
        g = g + penalty * p;
        C direction = g;
        if (has_momentum) {
            b = momentum * b + add * g;
            direction = is_nesterov ? g + momentum * b : b;
        }
        p = p - size * direction;
    }
};

extern "C" __global__ void decide_sgd(const Arguments all) { decide<Step>(all); }
extern "C" __global__ void __launch_bounds__(THREADS, 4) move_sgd(const Arguments all) { move_all<Sgd>(all); }
