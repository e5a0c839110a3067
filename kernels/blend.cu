// Gradient accumulation in place: into = keep * into + add * from, one pass, no temporary.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>

#define MAX_RANK 8

// How a strided tensor lies in memory, in elements; rank 0 for a contiguous one. Passed by value, so that a launch allocates nothing.
struct Strides {
    size_t rank;
    size_t dims[MAX_RANK];
    size_t strides[MAX_RANK];
};

static __device__ size_t place(size_t index, const Strides &strides) {
    if (strides.rank == 0) {
        return index;
    }
    size_t offset = 0;
    for (size_t axis = strides.rank; axis-- > 0;) {
        offset += index % strides.dims[axis] * strides.strides[axis];
        index /= strides.dims[axis];
    }
    return offset;
}

template <typename T, typename S>
static __device__ void blend(size_t len, T *into, const S *from, T keep, T add, const Strides &strides) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += step) {
        const T added = add * (T)from[place(i, strides)];
        // Not 0 * old: what a buffer holds from the window before may be infinite or not a number.
        into[i] = keep == (T)0 ? added : keep * into[i] + added;
    }
}

template <typename T>
static __device__ void scale(size_t len, T *into, T keep) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += step) {
        into[i] *= keep;
    }
}

#define BLEND(NAME, T, S)                                                                                                \
    extern "C" __global__ void NAME(size_t len, T *into, const S *from, T keep, T add, const Strides strides) {          \
        blend<T, S>(len, into, from, keep, add, strides);                                                                \
    }

#define SCALE(NAME, T)                                                                                                   \
    extern "C" __global__ void NAME(size_t len, T *into, T keep) { scale<T>(len, into, keep); }

BLEND(blend_f32_f32, float, float)
BLEND(blend_f32_f16, float, __half)
BLEND(blend_f32_bf16, float, __nv_bfloat16)
BLEND(blend_f64_f64, double, double)
SCALE(scale_f32, float)
SCALE(scale_f64, double)
