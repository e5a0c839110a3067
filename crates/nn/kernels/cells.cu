// Normalization of cells, such as channels: src/norm.rs. A tensor has outer × cells × inner elements; a cell is what has one index
// in the middle. Threads take four neighbouring elements, which are of one cell if `inner` is a multiple of four, or of four if it is 1, or one
// element otherwise.

#include "columns.cuh"

// Calls `add` for what threads take of the block's cell, from the number `first` to `end`, two at a time: `read` gives what is at the index of an
// element.
template <typename R, typename F>
static __device__ __forceinline__ void each_of_cell(uint64_t cells, uint64_t inner, uint64_t first, uint64_t end, R read, F add) {
    const uint64_t unit = unit_of(inner), width = inner / unit;
    const uint64_t rows = quotient(blockDim.x, width), rest = blockDim.x - rows * width;
    uint64_t at = first + threadIdx.x, row = quotient(at, width), i = at - row * width;
    const auto next = [&] {
        const auto loaded = read(((row * cells + blockIdx.x) * width + i) * unit, at < end ? unit : 0);
        at += blockDim.x;
        row += rows;
        i += rest;
        if (i >= width) {
            i -= width;
            row++;
        }
        return loaded;
    };
    while (at < end) {
        const auto one = next();
        const bool are_two = at < end;
        const auto two = next();
        add(one, unit);
        add(two, are_two ? unit : 0);
    }
}

// x and dy of up to four elements.
template <typename T> struct Pair { Four<T> x, dy; };

// Σ dy and Σ dy · (x − mean), or with x − mean in the place of dy. A block in x has a cell, or 128 cells if `inner` is 1; one in y has a part of
// what threads take of a cell. `len` is their number for all parts. All parts of the first sum come before those of the second.
template <typename T>
static __device__ void cell_sums(uint64_t len, uint64_t cells, uint64_t inner, uint64_t len_of_part,
                                 uint32_t of_deviations, const Wide<T> *means, const T *xs, const T *dys, Wide<T> *sums) {
    typedef Wide<T> W;
    const uint64_t first = blockIdx.y * len_of_part, end = min(first + len_of_part, len);
    sums += blockIdx.y * cells;
    W *const products = sums + gridDim.y * cells;
    const bool is_one = of_deviations || xs == dys;
    const auto read = [&](uint64_t at, uint64_t count) {
        const Four<T> x = load(xs + at, count);
        return Pair<T>{x, is_one ? x : load(dys + at, count)};
    };
    const auto add = [&](W mean, T x, T dy, W &sum, W &product) {
        const W deviation = widen(x) - mean;
        const W value = of_deviations ? deviation : widen(dy);
        sum += value;
        product += deviation * value;
    };
    if (inner == 1) {
        const uint64_t column = (uint64_t)blockIdx.x * TILE + 4 * (threadIdx.x % WARP);
        const Four<W> mean = load(means + column, column < cells ? cells - column : 0);
        const auto add_row = [&](const Pair<T> &pair, W(&to)[2][4]) {
            for (uint32_t i = 0; i < 4; i++) {
                add(mean.values[i], pair.x.values[i], pair.dy.values[i], to[0][i], to[1][i]);
            }
        };
        const auto give = [&](uint32_t n, uint64_t cell, W sum) { (n == 0 ? sums : products)[cell] = sum; };
        over_rows<2, 2, W>(cells, first, end, read, add_row, give);
        return;
    }
    const W mean = means[blockIdx.x];
    W sum = 0, product = 0;
    each_of_cell(cells, inner, first, end, read, [&](const Pair<T> &pair, uint64_t count) {
        for (uint32_t i = 0; i < 4; i++) {
            if (i < count) {
                add(mean, pair.x.values[i], pair.dy.values[i], sum, product);
            }
        }
    });
    sum = over_block<Sum>(sum);
    product = over_block<Sum>(product);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        products[blockIdx.x] = product;
    }
}

// Calls `take` for the threads' share of a tensor: with the index of the first of up to four elements, their number, and a function that gives the
// values of their cells.
template <typename W, typename F>
static __device__ __forceinline__ void each_with_cell(uint64_t len, uint64_t cells, uint64_t inner, F take) {
    const uint64_t row = inner == 1 ? cells : inner;
    for (FOURS(at, len, row)) {
        const uint64_t cell = remainder(quotient(at, inner), cells);
        take(at, unit_of(row), [&](const W *values) {
            if (inner == 1) {
                return load(values + cell, unit_of(row));
            }
            const W value = values[cell];
            return Four<W>{value, value, value, value};
        });
    }
}

template <typename T>
static __device__ void cell_scaling(uint64_t len, uint64_t cells, uint64_t inner, const Wide<T> *means,
                                    const Wide<T> *scales, const Wide<T> *shifts, const T *xs, T *ys) {
    each_with_cell<Wide<T>>(len, cells, inner, [&](uint64_t at, uint64_t count, auto of_cells) {
        const auto mean = of_cells(means), scale = of_cells(scales), shift = of_cells(shifts);
        put(ys + at, count, load(xs + at, count), [&](T x, uint32_t i) {
            return (widen(x) - mean.values[i]) * scale.values[i] + shift.values[i];
        });
    });
}

template <typename T>
static __device__ void cell_gradient(uint64_t len, uint64_t cells, uint64_t inner, const Wide<T> *means,
                                     const Wide<T> *scales, const Wide<T> *slopes, const Wide<T> *shifts, const T *xs,
                                     const T *dys, T *dxs) {
    each_with_cell<Wide<T>>(len, cells, inner, [&](uint64_t at, uint64_t count, auto of_cells) {
        const auto mean = of_cells(means), scale = of_cells(scales), slope = of_cells(slopes), shift = of_cells(shifts);
        const Four<T> dy = load(dys + at, count);
        put(dxs + at, count, load(xs + at, count), [&](T x, uint32_t i) {
            const Wide<T> along = (widen(x) - mean.values[i]) * slope.values[i];
            return widen(dy.values[i]) * scale.values[i] - along - shift.values[i];
        });
    });
}

KERNEL(cell_sums,
       (uint64_t len, uint64_t cells, uint64_t inner, uint64_t len_of_part, uint32_t of_deviations,
        const Wide<T> *means, const T *xs, const T *dys, Wide<T> *sums),
       (len, cells, inner, len_of_part, of_deviations, means, xs, dys, sums))
KERNEL(cell_scaling,
       (uint64_t len, uint64_t cells, uint64_t inner, const Wide<T> *means, const Wide<T> *scales, const Wide<T> *shifts,
        const T *xs, T *ys),
       (len, cells, inner, means, scales, shifts, xs, ys))
KERNEL(cell_gradient,
       (uint64_t len, uint64_t cells, uint64_t inner, const Wide<T> *means, const Wide<T> *scales, const Wide<T> *slopes,
        const Wide<T> *shifts, const T *xs, const T *dys, T *dxs),
       (len, cells, inner, means, scales, slopes, shifts, xs, dys, dxs))
