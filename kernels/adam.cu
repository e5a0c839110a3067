// Adam and AdamW.

#include "elementwise.cuh"

// The hyper-parameters, in the order of the rule's.
enum { LEARNING_RATE, WEIGHT_DECAY, BETA1, BETA2, EPS };
enum { SIZE, UNBIAS, KEEP, PENALTY };

template <bool IS_DECOUPLED> struct Step {
    static __device__ void coefficients(const double *hyper, const Entry &entry, uint64_t step, double *into) {
        const double learning_rate = entry.learning_rate;
        const double weight_decay = entry.weight_decay;
        into[SIZE] = learning_rate / (1 - power(hyper[BETA1], step));
        into[UNBIAS] = 1 / sqrt(1 - power(hyper[BETA2], step));
        into[KEEP] = IS_DECOUPLED ? 1 - learning_rate * weight_decay : 1;
        into[PENALTY] = IS_DECOUPLED ? 0 : weight_decay;
    }
};

template <typename C> struct Adam {
    C beta1, beta2, eps, size, unbias, keep, penalty, add1, add2;

    __device__ Adam(const double *hyper, const double *values)
        : beta1((C)hyper[BETA1]), beta2((C)hyper[BETA2]), eps((C)hyper[EPS]), size((C)values[SIZE]), unbias((C)values[UNBIAS]),
          keep((C)values[KEEP]), penalty((C)values[PENALTY]),
          // In f64, because 1 - 0.999 in f32 is off by 5 in 100,000.
          add1((C)(1 - hyper[BETA1])), add2((C)(1 - hyper[BETA2])) {}

    __device__ __forceinline__ void update(C &p, C g, C &m, C &v) const {
        g = g + penalty * p;
        m = beta1 * m + add1 * g;
        v = beta2 * v + add2 * g * g;
        p = keep * p - size * m / (root(v) * unbias + eps);
    }
};

extern "C" __global__ void decide_adam(const Arguments all) { decide<Step<false>>(all); }
extern "C" __global__ void decide_adamw(const Arguments all) { decide<Step<true>>(all); }
extern "C" __global__ void __launch_bounds__(THREADS, 4) move_adam(const Arguments all) { move_all<Adam>(all); }
