// Dropout with random numbers that are a function of the element's position. src/kernel/philox.rs computes the same.

#include "philox.cuh"
#include "rows.cuh"

template <typename T>
static __device__ void dropout(uint64_t len, uint64_t seed, uint64_t stream, uint32_t threshold, double scale,
                               const T *xs, T *ys) {
    for (FOURS(i, len, 4)) {
        uint32_t numbers[4];
        philox(seed, stream, i / 4, numbers);
        put(ys + i, len - i, load(xs + i, len - i), [&](T x, uint32_t j) {
            return numbers[j] < threshold ? (Wide<T>)0 : widen(x) * (Wide<T>)scale;
        });
    }
}

KERNEL(dropout,
       (uint64_t len, uint64_t seed, uint64_t stream, uint32_t threshold, double scale, const T *xs, T *ys),
       (len, seed, stream, threshold, scale, xs, ys))
