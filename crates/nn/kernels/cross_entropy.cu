// Cross-entropy of rows of logits. src/loss/cross_entropy.rs launches a block for each row.

#include "rows.cuh"

// The target `none` stands for no class; any other that is not below the width gives NaN and reads nothing.
template <typename T>
static __device__ void cross_entropy(uint64_t width, int64_t none, const int64_t *targets, const T *xs, Wide<T> *losses,
                                     Wide<T> *logs) {
    const T *x = xs + blockIdx.x * width;
    const Held<T> held(x, width);
    const Wide<T> max = largest(width, held);
    const Wide<T> sum = log(sum_of_powers(width, held, max));
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
    const Held<T> x(xs + row, width);
    const Wide<T> max = largest(width, x);
    each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
        put(dxs + row + i, count, x.at(i, count, group), [&](T x, uint32_t j) {
            const Wide<T> softmax = exp((widen(x) - max) - log);
            const Wide<T> onehot = inside && (uint64_t)target == i + j ? 1 : 0;
            return inside ? (softmax - onehot) * scale : target == none ? (Wide<T>)0 : (Wide<T>)NAN;
        });
    });
}

KERNEL(cross_entropy,
       (uint64_t width, int64_t none, const int64_t *targets, const T *xs, Wide<T> *losses, Wide<T> *logs),
       (width, none, targets, xs, losses, logs))
KERNEL(cross_entropy_backward,
       (uint64_t width, int64_t none, const int64_t *targets, const Wide<T> *logs, const Wide<T> *factor, const T *xs,
        T *dxs),
       (width, none, targets, logs, factor, xs, dxs))
