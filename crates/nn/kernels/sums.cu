// Sums over rows. src/kernel/cuda/enabled/kernels.rs launches blocks of 256 threads for 128 columns each.

#include "columns.cuh"

// The sums of `rows_of_part` rows for each part, that is for each block in y.
template <typename T>
static __device__ void sum_of_rows(uint64_t width, uint64_t rows, uint64_t rows_of_part, const T *xs, Wide<T> *parts) {
    const uint64_t first = blockIdx.y * rows_of_part;
    sum_of_columns(width, first, min(first + rows_of_part, rows), xs, parts + blockIdx.y * width);
}

// Adds up the parts of sums: of the last ones, and of the first ones by blocks of a second y.
template <typename T>
static __device__ void add_parts(uint64_t width, uint64_t parts, const Wide<T> *first, const Wide<T> *last, T *of_first, T *of_last) {
    sum_of_columns(width, 0, parts, blockIdx.y == 0 ? last : first, blockIdx.y == 0 ? of_last : of_first);
}

KERNEL(sum_of_rows, (uint64_t width, uint64_t rows, uint64_t rows_of_part, const T *xs, Wide<T> *parts),
       (width, rows, rows_of_part, xs, parts))
KERNEL(add_parts,
       (uint64_t width, uint64_t parts, const Wide<T> *first, const Wide<T> *last, T *of_first, T *of_last),
       (width, parts, first, last, of_first, of_last))
