// Lion.

#include "elementwise.cuh"

// The hyper-parameters, in the order of the rule's.
enum { LEARNING_RATE, WEIGHT_DECAY, BETA1, BETA2 };
enum { SIZE, KEEP };

struct Step {
    static __device__ void coefficients(const double *, const Entry &entry, uint64_t, double *into) {
        into[SIZE] = entry.learning_rate;
        into[KEEP] = 1 - entry.learning_rate * entry.weight_decay;
    }
};

// 1 or -1, 0 for 0, and NaN for NaN.
template <typename C> static __device__ __forceinline__ C sign(C value) {
    return value > 0 ? (C)1 : value < 0 ? (C)-1 : value == 0 ? (C)0 : value;
}

template <typename C> struct Lion {
    C beta1, beta2, size, keep, add1, add2;

    __device__ Lion(const double *hyper, const double *values)
        : beta1((C)hyper[BETA1]), beta2((C)hyper[BETA2]), size((C)values[SIZE]), keep((C)values[KEEP]),
          add1((C)(1 - hyper[BETA1])), add2((C)(1 - hyper[BETA2])) {}

    __device__ __forceinline__ void update(C &p, C g, C &m, C &) const {
        const C direction = sign(beta1 * m + add1 * g);
        p = keep * p - size * direction;
        m = beta2 * m + add2 * g;
    }
};

extern "C" __global__ void decide_lion(const Arguments all) { decide<Step>(all); }
extern "C" __global__ void __launch_bounds__(THREADS, 4) move_lion(const Arguments all) { move_all<Lion>(all); }
