// The layout of a strided tensor, in elements; src/optim/blend/mod.rs computes it.

#pragma once

#include <stdint.h>

#define MAX_RANK 8

// Passed by value, so that a launch allocates nothing. Rank 0 means contiguous.
struct Axes {
    uint64_t rank;
    uint64_t sizes[MAX_RANK];
    uint64_t strides[MAX_RANK];
};
static_assert(sizeof(Axes) == 17 * 8, "src/optim/blend/cuda.rs passes 17 numbers of 8 bytes");

static __device__ __forceinline__ uint64_t place(uint64_t index, uint32_t rank, const uint64_t *sizes, const uint64_t *strides) {
    if (rank == 0) {
        return index;
    }
    uint64_t offset = 0;
    for (uint32_t axis = rank; axis-- > 0;) {
        const uint64_t size = sizes[axis];
        offset += index % size * strides[axis];
        index /= size;
    }
    return offset;
}
