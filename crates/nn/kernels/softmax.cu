// Softmax over rows and its logarithm. src/kernel/cuda/enabled/kernels.rs launches a block for each row.

#include "rows.cuh"

// y = exp(x - max) / sum(exp(x - max)), or its logarithm
template <typename T> static __device__ void softmax(uint64_t width, uint32_t logarithm, const T *xs, T *ys) {
    const uint64_t row = blockIdx.x * width;
    const Held<T> x(xs + row, width);
    const Wide<T> max = largest(width, x);
    const Wide<T> sum = sum_of_powers(width, x, max);
    const Wide<T> log_of_sum = log(sum);
    each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
        put(ys + row + i, count, x.at(i, count, group), [&](T x, uint32_t) {
            const Wide<T> above = widen(x) - max;
            return logarithm ? above - log_of_sum : exp(above) / sum;
        });
    });
}

// dx = y * (dy - sum(y * dy)), or of the logarithm dy - exp(y) * sum(dy)
template <typename T>
static __device__ void softmax_backward(uint64_t width, uint32_t logarithm, const T *ys, const T *dys, T *dxs) {
    const uint64_t row = blockIdx.x * width;
    const Held<T> y(ys + row, width), dy(dys + row, width);
    Wide<T> sum = 0;
    each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
        const Four<T> ys = y.at(i, count, group), dys = dy.at(i, count, group);
        for (uint32_t j = 0; j < 4; j++) {
            sum += widen(dys.values[j]) * (logarithm ? (Wide<T>)1 : widen(ys.values[j]));
        }
    });
    sum = over_block<Sum>(sum);
    each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
        const Four<T> dys = dy.at(i, count, group);
        put(dxs + row + i, count, y.at(i, count, group), [&](T y, uint32_t j) {
            const Wide<T> dy = widen(dys.values[j]);
            return logarithm ? dy - exp(widen(y)) * sum : widen(y) * (dy - sum);
        });
    });
}

KERNEL(softmax, (uint64_t width, uint32_t logarithm, const T *xs, T *ys), (width, logarithm, xs, ys))
KERNEL(softmax_backward, (uint64_t width, uint32_t logarithm, const T *ys, const T *dys, T *dxs),
       (width, logarithm, ys, dys, dxs))
