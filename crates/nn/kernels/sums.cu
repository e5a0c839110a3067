// Sums over rows. src/kernel/cuda/enabled/kernels.rs launches blocks of 256 threads for 128 columns each.

#include "columns.cuh"

// The sums of `rows_of_part` rows for each part, that is for each block in y.
template <typename T>
static __device__ void sum_of_rows(uint64_t width, uint64_t rows, uint64_t rows_of_part, const T *xs, Wide<T> *parts) {
    const uint64_t first = blockIdx.y * rows_of_part;
    sum_of_columns(width, first, min(first + rows_of_part, rows), xs, parts + blockIdx.y * width);
}

// Adds up the parts of one sum, or of two by blocks of a second y.
template <typename T>
static __device__ void add_parts(uint64_t width, uint64_t parts, const Wide<T> *xs, T *first, T *last) {
    T *sums = blockIdx.y + 1 == gridDim.y ? last : first;
    sum_of_columns(width, 0, parts, xs + blockIdx.y * parts * width, sums);
}

KERNEL(sum_of_rows, (uint64_t width, uint64_t rows, uint64_t rows_of_part, const T *xs, Wide<T> *parts),
       (width, rows, rows_of_part, xs, parts))
KERNEL(add_parts, (uint64_t width, uint64_t parts, const Wide<T> *xs, T *first, T *last), (width, parts, xs, first, last))
