// Cross-entropy of rows of logits. src/loss/cross_entropy.rs launches a block for each row.

#include "rows.cuh"

template <typename T> static __device__ Wide<T> largest(uint64_t width, const T *x) {
    Wide<T> max = -INFINITY;
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        max = Maximum::join(max, widen(x[i]));
    }
    return over_block<Maximum>(max);
}

// The target `none` stands for no class; any other that is not below the width gives NaN and reads nothing.
template <typename T>
static __device__ void cross_entropy(uint64_t width, int64_t none, const int64_t *targets, const T *xs, Wide<T> *losses,
                                     Wide<T> *logs) {
    const T *x = xs + blockIdx.x * width;
    const Wide<T> max = largest(width, x);
    Wide<T> sum = 0;
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        sum += exp(widen(x[i]) - max);
    }
    sum = log(over_block<Sum>(sum));
    if (threadIdx.x == 0) {
        const int64_t target = targets[blockIdx.x];
        const bool inside = target >= 0 && (uint64_t)target < width;
        logs[blockIdx.x] = sum;
        losses[blockIdx.x] = inside ? sum - (widen(x[target]) - max) : target == none ? (Wide<T>)0 : (Wide<T>)NAN;
    }
}

// dx = (exp(x - max - log) - onehot) * factor. The maximum is found again: added to the logarithm, a large one would take its digits.
template <typename T>
static __device__ void cross_entropy_backward(uint64_t width, int64_t none, const int64_t *targets, const Wide<T> *logs,
                                              const Wide<T> *factor, const T *xs, T *dxs) {
    const uint64_t row = blockIdx.x * width;
    const int64_t target = targets[blockIdx.x];
    const bool inside = target >= 0 && (uint64_t)target < width;
    const Wide<T> scale = factor[0];
    const Wide<T> log = logs[blockIdx.x];
    const Wide<T> max = largest(width, xs + row);
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        const Wide<T> softmax = exp((widen(xs[row + i]) - max) - log);
        const Wide<T> onehot = inside && (uint64_t)target == i ? 1 : 0;
        const Wide<T> dx = inside ? (softmax - onehot) * scale : target == none ? (Wide<T>)0 : (Wide<T>)NAN;
        dxs[row + i] = narrow<T>(dx);
    }
}

KERNEL(cross_entropy,
       (uint64_t width, int64_t none, const int64_t *targets, const T *xs, Wide<T> *losses, Wide<T> *logs),
       (width, none, targets, xs, losses, logs))
KERNEL(cross_entropy_backward,
       (uint64_t width, int64_t none, const int64_t *targets, const Wide<T> *logs, const Wide<T> *factor, const T *xs,
        T *dxs),
       (width, none, targets, logs, factor, xs, dxs))
