// A contiguous copy of a tensor of four dimensions at any strides: src/kernel/dense.rs.

#include "rows.cuh"

// Of `len` elements in dimensions of ?, `d1`, `d2` and `d3`, whose neighbours lie `s0` to `s3` elements apart.
template <typename T>
static __device__ void copy_strided(uint64_t len, uint64_t d1, uint64_t d2, uint64_t d3, uint64_t s0, uint64_t s1,
                                    uint64_t s2, uint64_t s3, const T *xs, T *ys) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t i2 = divided(i, d3), i1 = divided(i2, d2), i0 = divided(i1, d1);
        ys[i] = xs[i0 * s0 + (i1 - i0 * d1) * s1 + (i2 - i1 * d2) * s2 + (i - i2 * d3) * s3];
    }
}

KERNEL(copy_strided,
       (uint64_t len, uint64_t d1, uint64_t d2, uint64_t d3, uint64_t s0, uint64_t s1, uint64_t s2, uint64_t s3,
        const T *xs, T *ys),
       (len, d1, d2, d3, s0, s1, s2, s3, xs, ys))
