// Gradient accumulation in place: into = keep * into + add * from, one pass, no temporary. `from` may be `into`.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>

#include "axes.cuh"

template <typename T, typename S>
static __device__ void blend(size_t len, T *into, const S *from, T keep, T add, const Axes &axes) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += step) {
        const T added = add * (T)from[place(i, axes.rank, axes.sizes, axes.strides)];
        // Not 0 * old: the old values may be infinite or NaN.
        into[i] = keep == (T)0 ? added : keep * into[i] + added;
    }
}

#define BLEND(NAME, T, S)                                                                                                \
    extern "C" __global__ void NAME(size_t len, T *into, const S *from, T keep, T add, const Axes axes) {          \
        blend<T, S>(len, into, from, keep, add, axes);                                                                \
    }

// A copy to a smaller type, rounded to nearest: keep is 0.
#define NARROW(NAME, T)                                                                                                  \
    extern "C" __global__ void NAME(size_t len, T *into, const float *from, T keep, T add, const Axes axes) {      \
        const size_t step = (size_t)gridDim.x * blockDim.x;                                                           \
        for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += step) {                          \
            into[i] = (T)((float)add * from[place(i, axes.rank, axes.sizes, axes.strides)]);                          \
        }                                                                                                             \
    }

BLEND(blend_f32_f32, float, float)
BLEND(blend_f32_f16, float, __half)
BLEND(blend_f32_bf16, float, __nv_bfloat16)
BLEND(blend_f64_f64, double, double)
NARROW(narrow_bf16_f32, __nv_bfloat16)
NARROW(narrow_f16_f32, __half)
