// Dropout with random numbers that are a function of the element's position. src/nn/kernel/philox.rs computes the same.

#include "rows.cuh"

#define ROUNDS 7

// Philox4x32-7 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
static __device__ void philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t numbers[4]) {
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)block;
    uint32_t c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream;
    uint32_t c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t first = (uint64_t)0xd2511f53u * c0;
        const uint64_t second = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(second >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)second;
        c2 = (uint32_t)(first >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)first;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    numbers[0] = c0;
    numbers[1] = c1;
    numbers[2] = c2;
    numbers[3] = c3;
}

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

#define DROPOUT(NAME, T)                                                                                               \
    extern "C" __global__ void dropout_##NAME(uint64_t len, uint64_t seed, uint64_t stream, uint32_t threshold,        \
                                              double scale, const T *xs, T *ys) {                                      \
        dropout<T>(len, seed, stream, threshold, scale, xs, ys);                                                       \
    }
FOR_EACH_TYPE(DROPOUT)
