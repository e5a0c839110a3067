// One block for each row: the types that kernels read and write, and reductions over a block.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define ALL_LANES 0xffffffffu
#define WARP 32

// The type to compute in: double for double, float for all others.
template <typename T> struct Widened { typedef float type; };
template <> struct Widened<double> { typedef double type; };
template <typename T> using Wide = typename Widened<T>::type;

template <typename T> static __device__ __forceinline__ Wide<T> widen(T value) { return (Wide<T>)value; }
template <typename T> static __device__ __forceinline__ T narrow(Wide<T> value) { return (T)value; }

struct Sum {
    template <typename A> static __device__ __forceinline__ A join(A a, A b) { return a + b; }
};
struct Maximum {
    template <typename A> static __device__ __forceinline__ A join(A a, A b) { return a > b ? a : b; }
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

// Defines the kernel NAME_f32 of these parameters, which calls the function NAME<float> with these arguments, and so for each of the four
// types. The type is called T in the parameters.
#define KERNEL(NAME, PARAMETERS, ARGUMENTS)                                                                            \
    KERNEL_OF(NAME, f32, float, PARAMETERS, ARGUMENTS)                                                                 \
    KERNEL_OF(NAME, f64, double, PARAMETERS, ARGUMENTS)                                                                \
    KERNEL_OF(NAME, f16, __half, PARAMETERS, ARGUMENTS)                                                                \
    KERNEL_OF(NAME, bf16, __nv_bfloat16, PARAMETERS, ARGUMENTS)
#define KERNEL_OF(NAME, SUFFIX, TYPE, PARAMETERS, ARGUMENTS)                                                           \
    namespace SUFFIX {                                                                                                 \
    typedef TYPE T;                                                                                                    \
    extern "C" __global__ void NAME##_##SUFFIX PARAMETERS { NAME<T> ARGUMENTS; }                                       \
    }
