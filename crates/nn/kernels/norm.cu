// Normalization of rows: src/layer_norm.rs launches a block for each row, or for some rows where their sums are needed too.

#include "rows.cuh"

// The mean and the reciprocal of the deviation of a row of `width` elements. Without `center` the mean is 0. The mean is that of the
// differences from the first element: the mean of the elements themselves, if it is large, would be rounded by more than they differ.
template <typename T> struct Statistics {
    Wide<T> first, mean, scale;

    __device__ Wide<T> centered(T x) const { return (widen(x) - first) - mean; }
};

template <typename T>
static __device__ Statistics<T> statistics(uint64_t width, double eps, uint32_t center, const Held<T> &x) {
    Statistics<T> row = {center ? widen(x.row[0]) : 0, 0, 0};
    if (center) {
        row.mean = over_row<Sum>(width, x, (Wide<T>)0, [&](T x) { return row.centered(x); }) / (Wide<T>)width;
    }
    const Wide<T> squares = over_row<Sum>(width, x, (Wide<T>)0, [&](T x) { return row.centered(x) * row.centered(x); });
    row.scale = 1 / sqrt(squares / (Wide<T>)width + (Wide<T>)eps);
    return row;
}

template <typename T>
static __device__ void rows_forward(uint64_t width, double eps, uint32_t center, const T *xs, const T *weight, const T *bias,
                                    T *ys) {
    const Held<T> x(xs + blockIdx.x * width, width);
    T *y = ys + blockIdx.x * width;
    const Statistics<T> row = statistics(width, eps, center, x);
    each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
        const Four<T> w = load(weight + i, count), b = load(bias + i, count);
        put(y + i, count, x.at(i, count, group), [&](T x, uint32_t j) {
            return row.centered(x) * row.scale * widen(w.values[j]) + widen(b.values[j]);
        });
    });
}

// The same of xs + residual, which it writes too, rounded.
template <typename T>
static __device__ void rows_forward_sum(uint64_t width, double eps, uint32_t center, const T *xs, const T *residual,
                                        const T *weight, const T *bias, T *sums, T *ys) {
    const uint64_t start = blockIdx.x * width;
    each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
        const Four<T> more = load(residual + start + i, count);
        put(sums + start + i, count, load(xs + start + i, count), [&](T x, uint32_t j) { return widen(x) + widen(more.values[j]); });
    });
    // All threads read the first element of the row.
    __syncthreads();
    rows_forward<T>(width, eps, center, sums, weight, bias, ys);
}

// Each block takes `rows_of_block` rows. With `with_sums` the block adds up its part of dw and db there: a row of each
// for each block, all of dw first. `more`, unless it is null, is added to dx.
template <typename T>
static __device__ void rows_backward(uint64_t width, uint64_t rows, uint64_t rows_of_block, double eps, uint32_t center,
                                     uint32_t with_sums, const T *xs, const T *weight, const T *dys, const T *more, T *dxs,
                                     Wide<T> *sums) {
    const uint64_t start = blockIdx.x * rows_of_block;
    const uint64_t end = min(start + rows_of_block, rows);
    const Held<T> w(weight, width);
    Four<Wide<T>> dw[HELD<T>] = {}, db[HELD<T>] = {};
    Wide<T> *dw_part = sums + blockIdx.x * width, *db_part = dw_part + gridDim.x * width;
    for (uint64_t row = start; row < end; row++) {
        const Held<T> x(xs + row * width, width), dy(dys + row * width, width);
        T *dx = dxs + row * width;
        const Statistics<T> of_row = statistics(width, eps, center, x);
        Wide<T> along = 0, of_g = 0;
        each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
            const Four<T> xs = x.at(i, count, group), dys = dy.at(i, count, group), ws = w.at(i, count, group);
            // Each element has one thread, in all rows.
            Four<Wide<T>> of_w = {}, of_b = {};
            if (group == HELD<T> && with_sums && row > start) {
                of_w = load(dw_part + i, count);
                of_b = load(db_part + i, count);
            }
            Four<Wide<T>> &to_w = group < HELD<T> ? dw[group] : of_w, &to_b = group < HELD<T> ? db[group] : of_b;
            for (uint32_t j = 0; j < 4; j++) {
                // Beyond the row dy is 0.
                const Wide<T> normal = of_row.centered(xs.values[j]) * of_row.scale;
                const Wide<T> dy = widen(dys.values[j]), g = dy * widen(ws.values[j]);
                along += g * normal;
                of_g += g;
                to_w.values[j] += normal * dy;
                to_b.values[j] += dy;
            }
            if (group == HELD<T> && with_sums) {
                store(dw_part + i, count, of_w);
                store(db_part + i, count, of_b);
            }
        });
        along = over_block<Sum>(along) / (Wide<T>)width;
        of_g = center ? over_block<Sum>(of_g) / (Wide<T>)width : 0;
        each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
            const Four<T> dys = dy.at(i, count, group), ws = w.at(i, count, group);
            const Four<T> of_sum = more ? load(more + row * width + i, count) : Four<T>();
            put(dx + i, count, x.at(i, count, group), [&](T x, uint32_t j) {
                const Wide<T> normal = of_row.centered(x) * of_row.scale;
                const Wide<T> g = widen(dys.values[j]) * widen(ws.values[j]);
                return of_row.scale * (g - of_g - normal * along) + widen(of_sum.values[j]);
            });
        });
    }
    each_four<T>(with_sums ? width : 0, [&](uint64_t i, uint64_t count, uint32_t group) {
        if (group < HELD<T>) {
            store(dw_part + i, count, dw[group]);
            store(db_part + i, count, db[group]);
        }
    });
}

template <typename T, typename... Arguments> static __device__ void rows_backward_sum(Arguments... arguments) {
    rows_backward<T>(arguments...);
}

KERNEL(rows_forward,
       (uint64_t width, double eps, uint32_t center, const T *xs, const T *weight, const T *bias, T *ys),
       (width, eps, center, xs, weight, bias, ys))
KERNEL(rows_forward_sum,
       (uint64_t width, double eps, uint32_t center, const T *xs, const T *residual, const T *weight, const T *bias, T *sums, T *ys),
       (width, eps, center, xs, residual, weight, bias, sums, ys))
KERNEL(rows_backward,
       (uint64_t width, uint64_t rows, uint64_t rows_of_block, double eps, uint32_t center, uint32_t with_sums,
        const T *xs, const T *weight, const T *dys, T *dxs, Wide<T> *sums),
       (width, rows, rows_of_block, eps, center, with_sums, xs, weight, dys, (const T *)nullptr, dxs, sums))
KERNEL(rows_backward_sum,
       (uint64_t width, uint64_t rows, uint64_t rows_of_block, double eps, uint32_t center, uint32_t with_sums,
        const T *xs, const T *weight, const T *dys, const T *more, T *dxs, Wide<T> *sums),
       (width, rows, rows_of_block, eps, center, with_sums, xs, weight, dys, more, dxs, sums))
