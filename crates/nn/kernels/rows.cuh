// The types that kernels read and write, four neighbours at a time, and reductions over a block.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define ALL_LANES 0xffffffffu
#define WARP 32
// Of a block: the compiler gives each of them few enough registers.
#define MOST_THREADS 512

// The type to compute in: double for double, float for all others.
template <typename T> struct Widened { typedef float type; };
template <> struct Widened<double> { typedef double type; };
template <typename T> using Wide = typename Widened<T>::type;

template <typename T> static __device__ __forceinline__ Wide<T> widen(T value) { return (Wide<T>)value; }
template <typename T> static __device__ __forceinline__ T narrow(Wide<T> value) { return (T)value; }

// Four neighbouring elements, which are one load or two.
template <typename T> struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Four { T values[4]; };

// The elements of four from `skip` to `count`, and zeros. Rows may begin at any element.
template <typename T> static __device__ __forceinline__ Four<T> load(const T *from, uint64_t count, uint64_t skip = 0) {
    if (skip == 0 && count >= 4 && (uintptr_t)from % alignof(Four<T>) == 0) {
        return *(const Four<T> *)from;
    }
    Four<T> four = {};
    for (uint32_t i = 0; i < 4; i++) {
        if (i >= skip && i < count) {
            four.values[i] = from[i];
        }
    }
    return four;
}

// The same of four elements to write.
template <typename T> static __device__ __forceinline__ void store(T *to, uint64_t count, const Four<T> &four, uint64_t skip = 0) {
    if (skip == 0 && count >= 4 && (uintptr_t)to % alignof(Four<T>) == 0) {
        *(Four<T> *)to = four;
        return;
    }
    for (uint32_t i = 0; i < 4; i++) {
        if (i >= skip && i < count) {
            to[i] = four.values[i];
        }
    }
}

// Writes f(x, j) of the first `count` of four elements x, with j from 0 to 3.
template <typename T, typename F>
static __device__ __forceinline__ void put(T *to, uint64_t count, Four<T> x, F f) {
    for (uint32_t j = 0; j < 4; j++) {
        x.values[j] = narrow<T>(f(x.values[j], j));
    }
    store(to, count, x);
}

// The number of elements of a row of this width that a thread takes at once: they are all of one row.
static __device__ __forceinline__ uint64_t unit_of(uint64_t width) { return width % 4 == 0 ? 4 : 1; }

// The parts of a loop over `LEN` elements in rows of this width, by all threads of a launch: I is the first element that a thread takes at once.
#define FOURS(I, LEN, WIDTH)                                                                                           \
    uint64_t I = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * unit_of(WIDTH);                                   \
    I < LEN;                                                                                                           \
    I += (uint64_t)gridDim.x * blockDim.x * unit_of(WIDTH)

// i / d and i % d. Divisions of 64 bits take longer than reading an element.
static __device__ __forceinline__ uint64_t quotient(uint64_t i, uint64_t d) {
    return (i | d) >> 32 == 0 ? (uint32_t)i / (uint32_t)d : i / d;
}
static __device__ __forceinline__ uint64_t remainder(uint64_t i, uint64_t d) {
    return (i | d) >> 32 == 0 ? (uint32_t)i % (uint32_t)d : i % d;
}

struct Sum {
    template <typename A> static __device__ __forceinline__ A join(A a, A b) { return a + b; }
};
struct Maximum {
    template <typename A> static __device__ __forceinline__ A join(A a, A b) { return a > b ? a : b; }
};

// Each thread has groups of four neighbouring elements of a row, the first HELD of them in registers. Of wider rows than that it reads the others
// again.
template <typename T> constexpr uint32_t HELD = sizeof(T) > 4 ? 1 : 2;

// Calls `take` with the index of the first of four elements, how many there are from there on, and the number of the group, HELD for all later ones.
template <typename T, typename F> static __device__ __forceinline__ void each_four(uint64_t width, F take) {
    uint64_t i = 4 * threadIdx.x;
#pragma unroll
    for (uint32_t group = 0; group < HELD<T>; group++, i += 4 * blockDim.x) {
        if (i < width) {
            take(i, width - i, group);
        }
    }
    for (; i < width; i += 4 * blockDim.x) {
        take(i, width - i, HELD<T>);
    }
}

template <typename T> struct Held {
    const T *row;
    Four<T> groups[HELD<T>];

    __device__ __forceinline__ Held(const T *row, uint64_t width) : row(row) {
        each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
            if (group < HELD<T>) {
                groups[group] = load(row + i, count);
            }
        });
    }

    __device__ __forceinline__ Four<T> at(uint64_t i, uint64_t count, uint32_t group) const {
        return group < HELD<T> ? groups[group] : load(row + i, count);
    }
};

// Joins the values of all threads of a block; every thread gets the result. All threads take part; a block has at most 32 warps.
template <typename J, typename A> static __device__ A over_block(A value) {
    for (uint32_t step = WARP / 2; step > 0; step /= 2) {
        value = J::join(value, __shfl_xor_sync(ALL_LANES, value, step));
    }
    const uint32_t warps = blockDim.x / WARP;
    if (warps <= 1) {
        return value;
    }
    __shared__ A of_warps[WARP];
    // Until all threads have read the values of the call before.
    __syncthreads();
    if (threadIdx.x % WARP == 0) {
        of_warps[threadIdx.x / WARP] = value;
    }
    __syncthreads();
    value = of_warps[0];
    for (uint32_t warp = 1; warp < warps; warp++) {
        value = J::join(value, of_warps[warp]);
    }
    return value;
}

// Joins f(x) of all elements of the block's row.
template <typename J, typename T, typename F>
static __device__ __forceinline__ Wide<T> over_row(uint64_t width, const Held<T> &x, Wide<T> none, F f) {
    Wide<T> all = none;
    each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
        const Four<T> four = x.at(i, count, group);
        for (uint32_t j = 0; j < 4; j++) {
            all = j < count ? J::join(all, f(four.values[j])) : all;
        }
    });
    return over_block<J>(all);
}

template <typename T> static __device__ Wide<T> largest(uint64_t width, const Held<T> &x) {
    return over_row<Maximum>(width, x, (Wide<T>)-INFINITY, [](T x) { return widen(x); });
}

template <typename T> static __device__ Wide<T> sum_of_powers(uint64_t width, const Held<T> &x, Wide<T> max) {
    return over_row<Sum>(width, x, (Wide<T>)0, [&](T x) { return exp(widen(x) - max); });
}

// Defines the kernel NAME_f32 of these parameters, which calls the function NAME<float> with these arguments, and so for each of the four
// types. The type is called T in the parameters.
// Divisions of 64 bits take longer than reading two elements.
static __device__ __forceinline__ uint64_t divided(uint64_t a, uint64_t b) {
    return (a | b) >> 32 == 0 ? (uint32_t)a / (uint32_t)b : a / b;
}

#define KERNEL(NAME, PARAMETERS, ARGUMENTS)                                                                            \
    KERNEL_OF(NAME, f32, float, PARAMETERS, ARGUMENTS)                                                                 \
    KERNEL_OF(NAME, f64, double, PARAMETERS, ARGUMENTS)                                                                \
    KERNEL_OF(NAME, f16, __half, PARAMETERS, ARGUMENTS)                                                                \
    KERNEL_OF(NAME, bf16, __nv_bfloat16, PARAMETERS, ARGUMENTS)
#define KERNEL_OF(NAME, SUFFIX, TYPE, PARAMETERS, ARGUMENTS)                                                           \
    namespace SUFFIX {                                                                                                 \
    typedef TYPE T;                                                                                                    \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS) NAME##_##SUFFIX PARAMETERS {                            \
        NAME<T> ARGUMENTS;                                                                                             \
    }                                                                                                                  \
    }
