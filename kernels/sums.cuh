// Sums of squares in the CPU's order: in f64, along eight lanes of blocks of 256 elements.

#pragma once

#include "fused.cuh"

#define BLOCK 256
#define LANES 8
#define ALL 0xffffffffu

static __device__ __forceinline__ double not_a_number() { return __longlong_as_double(0x7ff8000000000000ll); }

// The sum over `len` elements from `start` on, at most a block, by eight neighbouring threads; all threads of a warp take part. NaN if
// an element is not finite.
template <typename F> static __device__ double block_squares(uint64_t start, uint64_t len, F at) {
    const uint32_t lane = threadIdx.x % LANES;
    const uint32_t first = threadIdx.x % 32 - lane;
    const uint64_t whole = len - len % LANES;
    double sum = 0;
    bool is_finite = true;
    for (uint64_t i = lane; i < whole; i += LANES) {
        const double value = at(start + i);
        is_finite = is_finite && isfinite(value);
        sum += value * value;
    }
    double total = 0;
    for (uint32_t other = 0; other < LANES; other++) {
        total += __shfl_sync(ALL, sum, first + other);
    }
    double rest = 0;
    for (uint64_t i = whole; i < len; i++) {
        const double value = at(start + i);
        is_finite = is_finite && isfinite(value);
        rest += value * value;
    }
    const uint32_t finite = __ballot_sync(ALL, is_finite);
    return (finite >> first & 0xff) == 0xff ? total + rest : not_a_number();
}

// The sum over at most a chunk, by all threads of a block of `THREADS`; the first thread gets it.
template <typename F> static __device__ double chunk_squares(uint64_t start, uint64_t end, F at) {
    __shared__ double sums[CHUNK / BLOCK];
    const uint32_t mine = threadIdx.x / LANES;
    const uint32_t at_a_time = THREADS / LANES;
    const uint64_t blocks = (end - start + BLOCK - 1) / BLOCK;
    for (uint64_t block = 0; block < blocks; block += at_a_time) {
        const uint64_t from = min(start + (block + mine) * BLOCK, end);
        const double sum = block_squares(from, min(end - from, (uint64_t)BLOCK), at);
        if (threadIdx.x % LANES == 0 && block + mine < blocks) {
            sums[block + mine] = sum;
        }
    }
    __syncthreads();
    double total = 0;
    if (threadIdx.x == 0) {
        for (uint64_t block = 0; block < blocks; block++) {
            total += sums[block];
        }
    }
    return total;
}

// Chunks whose sums are added before those of a parameter's groups are: as on the CPU.
#define GROUP 128

static __device__ __forceinline__ uint64_t chunks_of(const Slot &slot) { return (slot.len + CHUNK - 1) / CHUNK; }

// The sum of every `step`th of `count` partial sums, in their order.
static __device__ double in_order(const double *partials, uint64_t count, uint64_t step) {
    double total = 0;
#pragma unroll 8
    for (uint64_t i = 0; i < count; i += step) {
        total += partials[i];
    }
    return total;
}
