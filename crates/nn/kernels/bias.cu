// Adds a vector to each row in place. src/kernel/cuda/enabled/in_place.rs launches a thread for each element.

#include "rows.cuh"

template <typename T> static __device__ void add_to_rows(uint64_t len, uint64_t width, const T *bias, T *ys) {
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += step) {
        ys[i] = narrow<T>(widen(ys[i]) + widen(bias[i % width]));
    }
}

KERNEL(add_to_rows, (uint64_t len, uint64_t width, const T *bias, T *ys), (len, width, bias, ys))
