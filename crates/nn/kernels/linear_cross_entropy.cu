// Losses of rows of logits and their gradients in place. src/kernel/cuda/enabled/in_place.rs launches a block for
// each row.

#include "rows.cuh"

template <typename T> struct Rule {
    T smoothing;
    T z_loss;
    T softcap; // 0 if there is none
};

// The weighted loss of a row and, with `differentiates`, its gradient over the logits. The target `none` stands for no class; any
// other that is not below the width, and a negative weight, give NaN. `weights` and `bias` may be null.
template <typename T>
static __device__ void linear_cross_entropy(uint64_t width, int64_t none, Rule<T> rule, uint32_t differentiates,
                                            const int64_t *targets, const T *weights, const T *bias, T *xs, T *losses) {
    T *x = xs + blockIdx.x * width;
    const int64_t target = targets[blockIdx.x];
    const T weight = weights ? weights[blockIdx.x] : (T)1;
    const bool inside = target >= 0 && (uint64_t)target < width && weight >= 0;
    if (target == none || weight == 0 || !inside) {
        const T value = target == none || weight == 0 ? (T)0 : (T)NAN;
        for (uint64_t i = threadIdx.x; differentiates && i < width; i += blockDim.x) {
            x[i] = value;
        }
        if (threadIdx.x == 0) {
            losses[blockIdx.x] = value;
        }
        return;
    }
    T max = -INFINITY;
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        if (bias) {
            x[i] += bias[i];
        }
        if (rule.softcap > 0) {
            x[i] = tanh(x[i] / rule.softcap) * rule.softcap;
        }
        max = Maximum::join(max, x[i]);
    }
    max = over_block<Maximum>(max);
    T sum = 0, below = 0;
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        sum += exp(x[i] - max);
        below += x[i] - max;
    }
    // The logarithm is kept apart from the maximum: added to it, it would lose its digits if that is large.
    const T log_of_sum = log(over_block<Sum>(sum));
    const T whole = max + log_of_sum;
    const T share = rule.smoothing / (T)width;
    if (rule.smoothing > 0) {
        below = over_block<Sum>(below);
    }
    // The first thread reads the target's element after another thread has written it, and before that thread changes it again.
    __syncthreads();
    const T of_target = x[target];
    __syncthreads();
    if (threadIdx.x == 0) {
        const T above = log_of_sum - (of_target - max);
        T loss = above;
        if (rule.smoothing > 0) {
            loss = (1 - rule.smoothing) * above + (rule.smoothing * log_of_sum - share * below);
        }
        if (rule.z_loss > 0) {
            loss += rule.z_loss * whole * whole;
        }
        losses[blockIdx.x] = weight * loss;
    }
    if (!differentiates) {
        return;
    }
    const T of_softmax = weight * (1 + 2 * rule.z_loss * whole);
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        T slope = of_softmax * exp((x[i] - max) - log_of_sum) - weight * share;
        if (i == (uint64_t)target) {
            slope -= weight * (1 - rule.smoothing);
        }
        if (rule.softcap > 0) {
            // The derivative of the cap, from its result.
            const T part = x[i] / rule.softcap;
            slope *= 1 - part * part;
        }
        x[i] = slope;
    }
}

#define LINEAR_CROSS_ENTROPY(NAME, T)                                                                                  \
    extern "C" __global__ void linear_cross_entropy_##NAME(                                                            \
        uint64_t width, int64_t none, T smoothing, T z_loss, T softcap, uint32_t differentiates,                       \
        const int64_t *targets, const T *weights, const T *bias, T *xs, T *losses) {                                   \
        const Rule<T> rule = {smoothing, z_loss, softcap};                                                             \
        linear_cross_entropy<T>(width, none, rule, differentiates, targets, weights, bias, xs, losses);                \
    }                                                                                                                  \
    /* xs *= factor[0] */                                                                                              \
    extern "C" __global__ void scale_##NAME(uint64_t len, const T *factor, T *xs) {                                    \
        for (FOURS(i, len, 4)) {                                                                                       \
            put(xs + i, len - i, load(xs + i, len - i), [&](T x, uint32_t) { return x * factor[0]; });                 \
        }                                                                                                              \
    }
LINEAR_CROSS_ENTROPY(f32, float)
LINEAR_CROSS_ENTROPY(f64, double)
