// Softmax over rows and its logarithm. src/kernel/cuda/enabled/kernels.rs launches a block for each row.

#include "rows.cuh"

// y = exp(x - max) / sum(exp(x - max)), or its logarithm
template <typename T> static __device__ void softmax(uint64_t width, uint32_t logarithm, const T *xs, T *ys) {
    const uint64_t row = blockIdx.x * width;
    Wide<T> max = -INFINITY;
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        max = Maximum::join(max, widen(xs[row + i]));
    }
    max = over_block<Maximum>(max);
    Wide<T> sum = 0;
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        sum += exp(widen(xs[row + i]) - max);
    }
    sum = over_block<Sum>(sum);
    const Wide<T> log_of_sum = log(sum);
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        const Wide<T> above = widen(xs[row + i]) - max;
        ys[row + i] = narrow<T>(logarithm ? above - log_of_sum : exp(above) / sum);
    }
}

// dx = y * (dy - sum(y * dy)), or of the logarithm dy - exp(y) * sum(dy)
template <typename T>
static __device__ void softmax_backward(uint64_t width, uint32_t logarithm, const T *ys, const T *dys, T *dxs) {
    const uint64_t row = blockIdx.x * width;
    Wide<T> sum = 0;
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        sum += widen(dys[row + i]) * (logarithm ? (Wide<T>)1 : widen(ys[row + i]));
    }
    sum = over_block<Sum>(sum);
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        const Wide<T> y = widen(ys[row + i]), dy = widen(dys[row + i]);
        dxs[row + i] = narrow<T>(logarithm ? dy - exp(y) * sum : y * (dy - sum));
    }
}

KERNEL(softmax, (uint64_t width, uint32_t logarithm, const T *xs, T *ys), (width, logarithm, xs, ys))
KERNEL(softmax_backward, (uint64_t width, uint32_t logarithm, const T *ys, const T *dys, T *dxs),
       (width, logarithm, ys, dys, dxs))
