// Softmax over rows: its backward pass. src/nn/ops/softmax.rs launches a block for each row.

#include "rows.cuh"

// dx = y * (dy - sum(y * dy))
template <typename T> static __device__ void softmax_backward(uint64_t width, const T *ys, const T *dys, T *dxs) {
    const uint64_t row = blockIdx.x * width;
    Wide<T> sum = 0;
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        sum += widen(ys[row + i]) * widen(dys[row + i]);
    }
    sum = over_block<Sum>(sum);
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        dxs[row + i] = narrow<T>(widen(ys[row + i]) * (widen(dys[row + i]) - sum));
    }
}

#define SOFTMAX_BACKWARD(NAME, T)                                                                                      \
    extern "C" __global__ void softmax_backward_##NAME(uint64_t width, const T *ys, const T *dys, T *dxs) {            \
        softmax_backward<T>(width, ys, dys, dxs);                                                                      \
    }
FOR_EACH_TYPE(SOFTMAX_BACKWARD)
