// Adafactor keeps the means of rows and columns of a matrix's second moment. The next means are computed beside the current ones; only
// the last launch changes parameters and state.

#include "decide.cuh"

// The hyper-parameters, in the order of the rule's.
enum { LEARNING_RATE, WEIGHT_DECAY, BETA2_DECAY, EPS1, EPS2, CLIP_THRESHOLD };
// `SIZE` is the factor on a step; `RATE` is a part of it.
enum { ADD, RATE, KEEP, SIZE };

enum Kind : uint32_t { SQUARES = 0, ROWS = 1, COLUMNS = 2 };
#define ROWS_PER_TASK 64
#define WARPS (THREADS / 32)

struct Step {
    static __device__ void coefficients(const double *hyper, const Entry &entry, uint64_t step, double *into) {
        into[ADD] = pow((double)step, hyper[BETA2_DECAY]);
        into[RATE] = fmin(entry.learning_rate, 1 / sqrt((double)step));
        into[KEEP] = 1 - entry.learning_rate * entry.weight_decay;
    }
};

template <typename C> struct Epsilon;
template <> struct Epsilon<float> {
    static constexpr double value = 1.1920928955078125e-7;
    // The smallest positive normal number.
    static constexpr double smallest = 1.1754943508222875e-38;
};
template <> struct Epsilon<double> {
    static constexpr double value = 2.220446049250313e-16;
    static constexpr double smallest = 2.2250738585072014e-308;
};

// The smallest square root of the second moment.
template <typename C> static __device__ double smallest_root(const double *hyper) {
    return hyper[EPS1] > 0 ? hyper[EPS1] : Epsilon<C>::value;
}

template <typename C> static __device__ C blend(C old, double added, double add) {
    return (C)((double)old + add * (added - (double)old));
}

// A parameter, with everything that its step is computed from.
template <typename C> struct Factors {
    const Slot &slot;
    const Coefficients &coefficients;
    Gradient<C> gradient;
    C floor;

    __device__ Factors(const Arguments &all, uint32_t index)
        : slot(all.slots[index]), coefficients(all.coefficients[index]), gradient(all, index, all.next().factor) {
        const double eps1 = smallest_root<C>(all.header.hyper);
        floor = (C)fmax(eps1 * eps1, Epsilon<C>::smallest);
    }

    // The next second moment of an element, for a parameter that is not a matrix.
    __device__ C moment(uint64_t index) const {
        const double g = gradient.adjusted(index);
        return blend(((const C *)slot.state[0])[index], g * g, coefficients.values[ADD]);
    }

    __device__ C step(uint64_t index) const {
        C square;
        if (slot.rows == 0) {
            square = moment(index);
        } else {
            const uint64_t row = index / slot.columns;
            const uint64_t matrix = row / slot.rows;
            const C factor = (C)((double)((const C *)slot.next[0])[row] / slot.means[matrix]);
            square = factor * ((const C *)slot.next[1])[matrix * slot.columns + index % slot.columns];
        }
        return gradient.adjusted(index) / root(square > floor ? square : floor);
    }
};

template <typename C> static __device__ void gather(const Arguments &all, const Task &task) {
    const Factors<C> factors(all, task.parameter);
    const Slot &slot = factors.slot;
    const double add = factors.coefficients.values[ADD];
    if (task.kind == SQUARES) {
        const Values values(all, task.parameter);
        const uint64_t start = task.start * CHUNK;
        const uint64_t end = min(start + CHUNK, slot.len);
        const double total = chunk_squares<false>(start, end, [&](uint64_t i) { return (double)values.at<C>(i); });
        if (threadIdx.x == 0) {
            all.partials[slot.first_chunk + task.start] = total;
        }
    } else if (task.kind == ROWS) {
        const uint64_t end = min(task.start + ROWS_PER_TASK, slot.matrices * slot.rows);
        for (uint64_t row = task.start + threadIdx.x / 32; row < end; row += WARPS) {
            const uint64_t start = row * slot.columns;
            const double total = warp_squares(start, start + slot.columns,
                                              [&](uint64_t i) { return (double)factors.gradient.adjusted(i); });
            if (threadIdx.x % 32 == 0) {
                ((C *)slot.next[0])[row] = blend(((const C *)slot.state[0])[row], total / (double)slot.columns, add);
            }
        }
    } else {
        const uint64_t index = task.start + threadIdx.x;
        if (index >= slot.matrices * slot.columns) {
            return;
        }
        const uint64_t first = index / slot.columns * slot.rows * slot.columns + index % slot.columns;
        double total = 0;
#pragma unroll 4
        for (uint64_t row = 0; row < slot.rows; row++) {
            const double g = factors.gradient.adjusted(first + row * slot.columns);
            total += g * g;
        }
        ((C *)slot.next[1])[index] = blend(((const C *)slot.state[1])[index], total / (double)slot.rows, add);
    }
}

// The mean of each matrix's rows, by a warp.
template <typename C> static __device__ void settle(const Arguments &all, const Task &task) {
    const Slot &slot = all.slots[task.parameter];
    const uint64_t matrix = task.start + threadIdx.x / 32;
    if (matrix >= slot.matrices) {
        return;
    }
    const C *const rows = (const C *)slot.next[0] + matrix * slot.rows;
    double total = 0;
    for (uint64_t start = 0; start < slot.rows; start += 32) {
        const uint32_t here = (uint32_t)min(slot.rows - start, (uint64_t)32);
        const uint32_t lane = threadIdx.x % 32;
        const double mine = lane < here ? (double)rows[start + lane] : 0;
        for (uint32_t i = 0; i < here; i++) {
            total += __shfl_sync(ALL, mine, i);
        }
    }
    if (threadIdx.x % 32 == 0) {
        slot.means[matrix] = fmax(total / (double)slot.rows, smallest_root<C>(all.header.hyper));
    }
}

template <typename C> static __device__ void measure(const Arguments &all, uint32_t index, uint64_t start, uint64_t end) {
    const Factors<C> factors(all, index);
    const double total = chunk_squares<false>(start, end, [&](uint64_t i) { return (double)factors.step(i); });
    if (threadIdx.x == 0) {
        all.partials[blockIdx.x] = total;
    }
}

template <typename C> static __device__ void move_chunk(const Arguments &all, const Task &chunk, uint64_t start, uint64_t end) {
    const Factors<C> factors(all, chunk.parameter);
    const Slot &slot = factors.slot;
    const Values values(all, chunk.parameter);
    const C size = (C)factors.coefficients.values[SIZE];
    const C keep = (C)factors.coefficients.values[KEEP];
    for (uint64_t i = start + threadIdx.x; i < end; i += THREADS) {
        const C step = factors.step(i);
        if (slot.rows == 0) {
            ((C *)slot.state[0])[i] = factors.moment(i);
        }
        values.put(i, keep * values.at<C>(i) - size * step);
    }
    if (slot.rows > 0) {
        // All blocks of the parameter share this work.
        const uint64_t stride = (slot.len + CHUNK - 1) / CHUNK * THREADS;
        const uint64_t lens[2] = {slot.matrices * slot.rows, slot.matrices * slot.columns};
        for (uint32_t which = 0; which < 2; which++) {
            for (uint64_t i = chunk.start * THREADS + threadIdx.x; i < lens[which]; i += stride) {
                ((C *)slot.state[which])[i] = ((const C *)slot.next[which])[i];
            }
        }
    }
}

extern "C" __global__ void decide_adafactor(const Arguments all) { decide<Step>(all); }

// Sums over each parameter, and the next means of its gradient's rows and columns.
extern "C" __global__ void gather_adafactor(const Arguments all, const Task *tasks) {
    const Task task = tasks[blockIdx.x];
    if (all.coefficients[task.parameter].moves) {
        all.slots[task.parameter].type == F64 ? gather<double>(all, task) : gather<float>(all, task);
    }
}

extern "C" __global__ void settle_adafactor(const Arguments all, const Task *tasks) {
    const Task task = tasks[blockIdx.x];
    if (all.coefficients[task.parameter].moves) {
        all.slots[task.parameter].type == F64 ? settle<double>(all, task) : settle<float>(all, task);
    }
}

// The size of each step, relative to its parameter.
extern "C" __global__ void size_adafactor(const Arguments all) {
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < all.parameters && all.coefficients[i].moves) {
        const Slot &slot = all.slots[i];
        const double mean_square = sqrt(total_of(slot, all.partials) / (double)slot.len);
        double *const values = all.coefficients[i].values;
        values[SIZE] = fmax(mean_square, all.header.hyper[EPS2]) * values[RATE];
    }
}

extern "C" __global__ void measure_adafactor(const Arguments all) {
    const Task chunk = all.chunks[blockIdx.x];
    if (all.coefficients[chunk.parameter].moves) {
        const Slot &slot = all.slots[chunk.parameter];
        const uint64_t start = chunk.start * CHUNK;
        const uint64_t end = min(start + CHUNK, slot.len);
        slot.type == F64 ? measure<double>(all, chunk.parameter, start, end) : measure<float>(all, chunk.parameter, start, end);
    }
}

// Scales down steps that are too large.
extern "C" __global__ void limit_adafactor(const Arguments all) {
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < all.parameters && all.coefficients[i].moves) {
        const Slot &slot = all.slots[i];
        const double squares = total_of(slot, all.partials);
        const double excess = sqrt(squares) / (sqrt((double)slot.len) * all.header.hyper[CLIP_THRESHOLD]);
        all.coefficients[i].values[SIZE] /= fmax(excess, 1.);
    }
}

extern "C" __global__ void move_adafactor(const Arguments all) {
    if (blockIdx.x == 0) {
        advance(all);
    }
    const Task chunk = all.chunks[blockIdx.x];
    if (all.coefficients[chunk.parameter].moves) {
        const Slot &slot = all.slots[chunk.parameter];
        const uint64_t start = chunk.start * CHUNK;
        const uint64_t end = min(start + CHUNK, slot.len);
        slot.type == F64 ? move_chunk<double>(all, chunk, start, end) : move_chunk<float>(all, chunk, start, end);
    }
}
