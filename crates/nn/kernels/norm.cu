// Normalization of rows: src/layer_norm.rs launches a block for each row, or for some rows where their sums are needed too.

#include "rows.cuh"

// The mean and the reciprocal of the deviation of a row of `width` elements. Without `center` the mean is 0. The mean is that of the
// differences from the first element: the mean of the elements themselves, if it is large, would be rounded by more than they differ.
template <typename T> struct Statistics {
    Wide<T> first, mean, scale;

    __device__ Wide<T> centered(T x) const { return (widen(x) - first) - mean; }
};

template <typename T>
static __device__ Statistics<T> statistics(uint64_t width, double eps, uint32_t center, const T *x) {
    Statistics<T> row = {center ? widen(x[0]) : 0, 0, 0};
    if (center) {
        Wide<T> sum = 0;
        for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
            sum += row.centered(x[i]);
        }
        row.mean = over_block<Sum>(sum) / (Wide<T>)width;
    }
    Wide<T> squares = 0;
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        const Wide<T> value = row.centered(x[i]);
        squares += value * value;
    }
    squares = over_block<Sum>(squares);
    row.scale = 1 / sqrt(squares / (Wide<T>)width + (Wide<T>)eps);
    return row;
}

template <typename T>
static __device__ void rows_forward(uint64_t width, double eps, uint32_t center, const T *xs, const T *weight, const T *bias,
                                    T *ys) {
    const T *x = xs + blockIdx.x * width;
    T *y = ys + blockIdx.x * width;
    const Statistics<T> row = statistics(width, eps, center, x);
    for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
        y[i] = narrow<T>(row.centered(x[i]) * row.scale * widen(weight[i]) + widen(bias[i]));
    }
}

// Each block takes `rows_of_block` rows. With `with_sums` the block adds up its part of dw and db there: two rows for each block.
template <typename T>
static __device__ void rows_backward(uint64_t width, uint64_t rows, uint64_t rows_of_block, double eps, uint32_t center,
                                     uint32_t with_sums, const T *xs, const T *weight, const T *dys, T *dxs, Wide<T> *sums) {
    const uint64_t first = blockIdx.x * rows_of_block;
    const uint64_t end = min(first + rows_of_block, rows);
    Wide<T> *dw = sums + blockIdx.x * 2 * width;
    Wide<T> *db = dw + width;
    for (uint64_t row = first; row < end; row++) {
        const T *x = xs + row * width;
        const T *dy = dys + row * width;
        T *dx = dxs + row * width;
        const Statistics<T> of_row = statistics(width, eps, center, x);
        Wide<T> along = 0, of_g = 0;
        for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
            const Wide<T> normal = of_row.centered(x[i]) * of_row.scale;
            const Wide<T> g = widen(dy[i]) * widen(weight[i]);
            along += g * normal;
            of_g += g;
            if (with_sums) {
                // Each element has one thread, in all rows.
                dw[i] = (row == first ? 0 : dw[i]) + normal * widen(dy[i]);
                db[i] = (row == first ? 0 : db[i]) + widen(dy[i]);
            }
        }
        along = over_block<Sum>(along) / (Wide<T>)width;
        of_g = center ? over_block<Sum>(of_g) / (Wide<T>)width : 0;
        for (uint64_t i = threadIdx.x; i < width; i += blockDim.x) {
            const Wide<T> normal = of_row.centered(x[i]) * of_row.scale;
            const Wide<T> g = widen(dy[i]) * widen(weight[i]);
            dx[i] = narrow<T>(of_row.scale * (g - of_g - normal * along));
        }
    }
}

// Adds up the blocks' parts of dw and db. A block of 256 threads takes 32 elements; each of its warps takes every eighth part.
template <typename T>
static __device__ void rows_sums(uint64_t width, uint64_t parts, const Wide<T> *sums, T *dw, T *db) {
    __shared__ Wide<T> of_warps[8][WARP];
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t warp = threadIdx.x / WARP;
    // Of the elements of dw and then of db.
    const uint64_t i = (uint64_t)blockIdx.x * WARP + lane;
    Wide<T> sum = 0;
    if (i < 2 * width) {
        for (uint64_t part = warp; part < parts; part += 8) {
            sum += sums[part * 2 * width + i];
        }
    }
    of_warps[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && i < 2 * width) {
        for (uint32_t other = 1; other < 8; other++) {
            sum += of_warps[other][lane];
        }
        T *out = i < width ? dw + i : db + (i - width);
        *out = narrow<T>(sum);
    }
}

KERNEL(rows_forward,
       (uint64_t width, double eps, uint32_t center, const T *xs, const T *weight, const T *bias, T *ys),
       (width, eps, center, xs, weight, bias, ys))
KERNEL(rows_backward,
       (uint64_t width, uint64_t rows, uint64_t rows_of_block, double eps, uint32_t center, uint32_t with_sums,
        const T *xs, const T *weight, const T *dys, T *dxs, Wide<T> *sums),
       (width, rows, rows_of_block, eps, center, with_sums, xs, weight, dys, dxs, sums))
KERNEL(rows_sums, (uint64_t width, uint64_t parts, const Wide<T> *sums, T *dw, T *db), (width, parts, sums, dw, db))
