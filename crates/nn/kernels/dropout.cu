// Dropout with random numbers that are a function of the element's position. src/kernel/philox.rs computes the same.

#include "philox.cuh"
#include "rows.cuh"

// One thread for each four elements.
template <typename T>
static __device__ void dropout(uint64_t len, uint64_t seed, uint64_t stream, uint32_t threshold, double scale,
                               const T *xs, T *ys) {
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t block = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; 4 * block < len; block += step) {
        uint32_t numbers[4];
        philox(seed, stream, block, numbers);
        for (uint32_t i = 0; i < 4 && 4 * block + i < len; i++) {
            const Wide<T> kept = widen(xs[4 * block + i]) * (Wide<T>)scale;
            ys[4 * block + i] = narrow<T>(numbers[i] < threshold ? (Wide<T>)0 : kept);
        }
    }
}

KERNEL(dropout,
       (uint64_t len, uint64_t seed, uint64_t stream, uint32_t threshold, double scale, const T *xs, T *ys),
       (len, seed, stream, threshold, scale, xs, ys))
