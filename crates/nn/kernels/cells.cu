// Normalization of cells, such as channels: src/norm.rs. A tensor has outer × cells × inner elements; a cell is what has one index
// in the middle. Sums are by a block for each cell.

#include "rows.cuh"

// Calls `take` with the index of each element of the block's cell, shared among its threads.
template <typename F>
static __device__ __forceinline__ void each_of_cell(uint64_t outer, uint64_t cells, uint64_t inner, F take) {
    const uint64_t parts = blockDim.x / inner;
    const uint64_t rest = blockDim.x % inner;
    uint64_t part = threadIdx.x / inner;
    uint64_t i = threadIdx.x % inner;
    while (part < outer) {
        take((part * cells + blockIdx.x) * inner + i);
        part += parts;
        i += rest;
        if (i >= inner) {
            i -= inner;
            part++;
        }
    }
}

// The cell of an element of a tensor of `len` elements.
static __device__ __forceinline__ uint64_t cell_of(uint64_t index, uint64_t len, uint64_t cells, uint64_t inner) {
    if (len >> 32 == 0) {
        return (uint32_t)index / (uint32_t)inner % (uint32_t)cells;
    }
    return index / inner % cells;
}

template <typename T>
static __device__ void cell_sums(uint64_t outer, uint64_t cells, uint64_t inner, uint32_t of_deviations,
                                 const Wide<T> *means, const T *xs, const T *dys, Wide<T> *sums, Wide<T> *products) {
    const Wide<T> mean = means[blockIdx.x];
    Wide<T> sum = 0, product = 0;
    each_of_cell(outer, cells, inner, [&](uint64_t at) {
        const Wide<T> deviation = widen(xs[at]) - mean;
        const Wide<T> dy = of_deviations ? deviation : widen(dys[at]);
        sum += dy;
        product += deviation * dy;
    });
    sum = over_block<Sum>(sum);
    product = over_block<Sum>(product);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        products[blockIdx.x] = product;
    }
}

template <typename T>
static __device__ void cell_scaling(uint64_t len, uint64_t cells, uint64_t inner, const Wide<T> *means,
                                    const Wide<T> *scales, const Wide<T> *shifts, const T *xs, T *ys) {
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < len; i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t cell = cell_of(i, len, cells, inner);
        ys[i] = narrow<T>((widen(xs[i]) - means[cell]) * scales[cell] + shifts[cell]);
    }
}

template <typename T>
static __device__ void cell_gradient(uint64_t len, uint64_t cells, uint64_t inner, const Wide<T> *means,
                                     const Wide<T> *scales, const Wide<T> *slopes, const Wide<T> *shifts, const T *xs,
                                     const T *dys, T *dxs) {
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < len; i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t cell = cell_of(i, len, cells, inner);
        const Wide<T> along = (widen(xs[i]) - means[cell]) * slopes[cell];
        dxs[i] = narrow<T>(widen(dys[i]) * scales[cell] - along - shifts[cell]);
    }
}

KERNEL(cell_sums,
       (uint64_t outer, uint64_t cells, uint64_t inner, uint32_t of_deviations, const Wide<T> *means, const T *xs,
        const T *dys, Wide<T> *sums, Wide<T> *products),
       (outer, cells, inner, of_deviations, means, xs, dys, sums, products))
KERNEL(cell_scaling,
       (uint64_t len, uint64_t cells, uint64_t inner, const Wide<T> *means, const Wide<T> *scales, const Wide<T> *shifts,
        const T *xs, T *ys),
       (len, cells, inner, means, scales, shifts, xs, ys))
KERNEL(cell_gradient,
       (uint64_t len, uint64_t cells, uint64_t inner, const Wide<T> *means, const Wide<T> *scales, const Wide<T> *slopes,
        const Wide<T> *shifts, const T *xs, const T *dys, T *dxs),
       (len, cells, inner, means, scales, slopes, shifts, xs, dys, dxs))
