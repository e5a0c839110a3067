// Sums of the columns of a matrix, in two stages: blocks add up some rows each, and sums.cu adds up their sums. How many rows a block has depends
// on the shape alone, so the sums have the same bits on each device.

#pragma once

#include "rows.cuh"

#define WARPS 8
// Columns of a block: four of each lane.
#define TILE (4 * WARP)

// Adds up the rows from `first` to `end` in the columns of a block of 8 warps. Each warp takes every eighth row, `AT_ONCE` of them in flight: `read`
// gives what there is of a row at the index of an element, for up to four columns, and `add` adds it to N sums of four columns. `give` gets the
// number of a sum, a column and its sum.
template <uint32_t N, uint32_t AT_ONCE, typename A, typename R, typename F, typename G>
static __device__ __forceinline__ void over_rows(uint64_t width, uint64_t first, uint64_t end, R read, F add, G give) {
    __shared__ A of_warps[WARPS][N][TILE];
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint64_t start = (uint64_t)blockIdx.x * TILE, column = start + 4 * lane;
    A sums[N][4] = {};
    if (column < width) {
        for (uint64_t row = first + warp; row < end; row += AT_ONCE * WARPS) {
            decltype(read(column, width)) loaded[AT_ONCE];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                const bool is_there = row + i * WARPS < end;
                loaded[i] = read((row + i * WARPS) * width + column, is_there ? width - column : 0);
            }
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                if (row + i * WARPS < end) {
                    add(loaded[i], sums);
                }
            }
        }
    }
    for (uint32_t n = 0; n < N; n++) {
        for (uint32_t i = 0; i < 4; i++) {
            of_warps[warp][n][4 * lane + i] = sums[n][i];
        }
    }
    __syncthreads();
    for (uint32_t at = threadIdx.x; at < N * TILE; at += blockDim.x) {
        A sum = of_warps[0][at / TILE][at % TILE];
        for (uint32_t other = 1; other < WARPS; other++) {
            sum += of_warps[other][at / TILE][at % TILE];
        }
        if (start + at % TILE < width) {
            give(at / TILE, start + at % TILE, sum);
        }
    }
}

// Writes the sums of the columns over the rows from `first` to `end`.
template <typename From, typename To>
static __device__ void sum_of_columns(uint64_t width, uint64_t first, uint64_t end, const From *xs, To *sums) {
    over_rows<1, 4, Wide<From>>(
        width, first, end, [&](uint64_t at, uint64_t count) { return load(xs + at, count); },
        [&](const Four<From> &x, Wide<From>(&sums)[1][4]) {
            for (uint32_t i = 0; i < 4; i++) {
                sums[0][i] += widen(x.values[i]);
            }
        },
        [&](uint32_t, uint64_t column, Wide<From> sum) { sums[column] = (To)sum; });
}
