// silu(a) * b of two tensors, and its gradients. src/ops/elementwise.rs has the same on the CPU.

#include "rows.cuh"

#define STRIDE(I, LEN)                                                                                                 \
    uint64_t I = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;                                                      \
    I < LEN;                                                                                                           \
    I += (uint64_t)gridDim.x * blockDim.x

template <typename T> static __device__ void silu_mul(uint64_t len, const T *gate, const T *up, T *ys) {
    for (STRIDE(i, len)) {
        const Wide<T> a = widen(gate[i]);
        ys[i] = narrow<T>(a / (1 + exp(-a)) * widen(up[i]));
    }
}

template <typename T>
static __device__ void silu_mul_backward(uint64_t len, const T *gate, const T *up, const T *dys, T *dgate, T *dup) {
    for (STRIDE(i, len)) {
        const Wide<T> a = widen(gate[i]);
        const Wide<T> dy = widen(dys[i]);
        const Wide<T> s = 1 / (1 + exp(-a));
        dgate[i] = narrow<T>(widen(up[i]) * (s * (1 + a * (1 - s))) * dy);
        dup[i] = narrow<T>(a * s * dy);
    }
}

KERNEL(silu_mul, (uint64_t len, const T *gate, const T *up, T *ys), (len, gate, up, ys))
KERNEL(silu_mul_backward, (uint64_t len, const T *gate, const T *up, const T *dys, T *dgate, T *dup),
       (len, gate, up, dys, dgate, dup))
