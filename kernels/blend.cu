// Gradient accumulation in place: into = keep * into + add * from, one pass, no temporary. `from` may be `into`.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>

#include "axes.cuh"

// Computed in `C`, and rounded to nearest where `T` is smaller; then keep is 0.
template <typename C, typename T, typename S>
static __device__ void blend(size_t len, T *into, const S *from, T keep, T add, const Axes &axes) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += step) {
        const C added = (C)add * (C)from[place(i, axes.rank, axes.sizes, axes.strides)];
        // Not 0 * old: the old values may be infinite or NaN.
        into[i] = (T)((C)keep == (C)0 ? added : (C)keep * (C)into[i] + added);
    }
}

#define BLEND(NAME, C, T, S)                                                                                             \
    extern "C" __global__ void NAME(size_t len, T *into, const S *from, T keep, T add, const Axes axes) {          \
        blend<C, T, S>(len, into, from, keep, add, axes);                                                             \
    }

BLEND(blend_f32_f32, float, float, float)
BLEND(blend_f32_f16, float, float, __half)
BLEND(blend_f32_bf16, float, float, __nv_bfloat16)
BLEND(blend_f64_f64, double, double, double)
BLEND(narrow_bf16_f32, float, __nv_bfloat16, float)
BLEND(narrow_f16_f32, float, __half, float)
