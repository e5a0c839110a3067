// Activation functions of each element, and their derivatives. src/ops/curves.rs has the same on the CPU.

#include "rows.cuh"

// The numbers of src/kernel/cuda/enabled/kernels.rs.
enum Curve { GELU, GELU_ERF, SILU, RELU, SIGMOID, ELU, RELU2, RELU6, HARD_SIGMOID, HARD_SWISH, MISH, LEAKY_RELU, SELU };

template <typename A> static __device__ __forceinline__ A sigmoid(A x) { return 1 / (1 + exp(-x)); }

template <typename A> static __device__ __forceinline__ A between(A x, A low, A high) {
    return x < low ? low : x > high ? high : x;
}

template <typename A> static __device__ __forceinline__ A by_sign(A x, A above, A below) {
    return x > 0 ? above : x < 0 ? below : (above + below) / 2;
}

template <typename A> static __device__ __forceinline__ A hard_sigmoid(A x) {
    return between((x + 3) / 6, (A)0, (A)1);
}

template <typename A> static __device__ __forceinline__ A hard_sigmoid_slope(A x) {
    return by_sign(3 - fabs(x), (A)(1. / 6), (A)0);
}

// tanh(ln(1 + e^x)) and its derivative
template <typename A> static __device__ __forceinline__ A mish(A x, A *slope) {
    const A power = exp(x > 20 ? (A)20 : x);
    const A above = power * (power + 2);
    const A below = above + 2;
    *slope = 4 * power * (power + 1) / (below * below);
    return above / below;
}

template <typename A> static __device__ A value(uint32_t curve, A first, A second, A x) {
    const A root = 0.7978845608028654;
    const A cube = 0.044715;
    const A positive = x < 0 ? (A)0 : x;
    A slope;
    switch (curve) {
    case GELU: return x * sigmoid(2 * root * x * (1 + cube * x * x));
    case GELU_ERF: return x * ((A)0.5 * erfc(-x * (A)0.7071067811865476));
    case SILU: return x * sigmoid(x);
    case RELU: return positive;
    case SIGMOID: return sigmoid(x);
    case ELU: return x > 0 ? x : first * (exp(x) - 1);
    case RELU2: return positive * positive;
    case RELU6: return between(x, (A)0, (A)6);
    case HARD_SIGMOID: return hard_sigmoid(x);
    case HARD_SWISH: return x * hard_sigmoid(x);
    case MISH: return x * mish(x, &slope);
    case LEAKY_RELU: return x < 0 ? first * x : x;
    case SELU: return second * (x > 0 ? x : first * (exp(x) - 1));
    default: return (A)NAN;
    }
}

template <typename A> static __device__ A slope(uint32_t curve, A first, A second, A x) {
    const A root = 0.7978845608028654;
    const A cube = 0.044715;
    switch (curve) {
    case GELU: {
        const A s = sigmoid(2 * root * x * (1 + cube * x * x));
        const A near = between(x, (A)-30, (A)30);
        return s + near * s * (1 - s) * (2 * root * (1 + 3 * cube * near * near));
    }
    case GELU_ERF: {
        const A near = between(x, (A)-1e3, (A)1e3);
        return (A)0.5 * erfc(-x * (A)0.7071067811865476) + near * (A)0.3989422804014327 * exp((A)-0.5 * near * near);
    }
    case SILU: return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
    case RELU: return x < 0 ? 0 : 1;
    case SIGMOID: return sigmoid(x) * (1 - sigmoid(x));
    case ELU: return x > 0 ? 1 : first * exp(x);
    case RELU2: return x < 0 ? 0 : x + x;
    case RELU6: return by_sign(3 - fabs(x - 3), (A)1, (A)0);
    case HARD_SIGMOID: return hard_sigmoid_slope(x);
    case HARD_SWISH: return hard_sigmoid(x) + x * hard_sigmoid_slope(x);
    case MISH: {
        A slope;
        const A value = mish(x, &slope);
        return value + between(x, (A)-1e3, (A)20) * slope;
    }
    case LEAKY_RELU: return by_sign(x, (A)1, first);
    case SELU: return second * (x > 0 ? 1 : first * exp(x));
    default: return (A)NAN;
    }
}

#define STRIDE(I, LEN)                                                                                                 \
    uint64_t I = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;                                                      \
    I < LEN;                                                                                                           \
    I += (uint64_t)gridDim.x * blockDim.x

template <typename T>
static __device__ void activation(uint64_t len, uint32_t curve, double first, double second, const T *xs, T *ys) {
    for (STRIDE(i, len)) {
        ys[i] = narrow<T>(value<Wide<T>>(curve, first, second, widen(xs[i])));
    }
}

template <typename T>
static __device__ void activation_backward(uint64_t len, uint32_t curve, double first, double second, const T *xs,
                                           const T *dys, T *dxs) {
    for (STRIDE(i, len)) {
        dxs[i] = narrow<T>(widen(dys[i]) * slope<Wide<T>>(curve, first, second, widen(xs[i])));
    }
}

// Where an element of a row of `width` has the first half of its pair. Divisions of 64 bits take longer than reading the pair.
static __device__ __forceinline__ uint64_t first_half(uint64_t i, uint64_t width) {
    const bool is_short = (i | width) >> 32 == 0;
    const uint64_t row = is_short ? (uint32_t)i / (uint32_t)width : i / width;
    return i + row * width;
}

// y = silu(a) * b of the halves of a row
template <typename T> static __device__ void swiglu(uint64_t len, uint64_t width, const T *xs, T *ys) {
    for (STRIDE(i, len)) {
        const uint64_t at = first_half(i, width);
        const Wide<T> a = widen(xs[at]);
        ys[i] = narrow<T>(a * sigmoid(a) * widen(xs[at + width]));
    }
}

template <typename T>
static __device__ void swiglu_backward(uint64_t len, uint64_t width, const T *xs, const T *dys, T *dxs) {
    for (STRIDE(i, len)) {
        const uint64_t at = first_half(i, width);
        const Wide<T> a = widen(xs[at]);
        const Wide<T> dy = widen(dys[i]);
        const Wide<T> s = sigmoid(a);
        dxs[at] = narrow<T>(widen(xs[at + width]) * (s * (1 + a * (1 - s))) * dy);
        dxs[at + width] = narrow<T>(a * s * dy);
    }
}

KERNEL(activation, (uint64_t len, uint32_t curve, double first, double second, const T *xs, T *ys),
       (len, curve, first, second, xs, ys))
KERNEL(activation_backward,
       (uint64_t len, uint32_t curve, double first, double second, const T *xs, const T *dys, T *dxs),
       (len, curve, first, second, xs, dys, dxs))
KERNEL(swiglu, (uint64_t len, uint64_t width, const T *xs, T *ys), (len, width, xs, ys))
KERNEL(swiglu_backward, (uint64_t len, uint64_t width, const T *xs, const T *dys, T *dxs), (len, width, xs, dys, dxs))
