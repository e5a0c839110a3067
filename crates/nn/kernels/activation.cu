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

template <typename T>
static __device__ void activation(uint64_t len, uint32_t curve, double first, double second, const T *xs, T *ys) {
    for (FOURS(i, len, 4)) {
        put(ys + i, len - i, load(xs + i, len - i),
            [&](T x, uint32_t) { return value<Wide<T>>(curve, first, second, widen(x)); });
    }
}

template <typename T>
static __device__ void activation_backward(uint64_t len, uint32_t curve, double first, double second, const T *xs,
                                           const T *dys, T *dxs) {
    for (FOURS(i, len, 4)) {
        const Four<T> dy = load(dys + i, len - i);
        put(dxs + i, len - i, load(xs + i, len - i), [&](T x, uint32_t j) {
            return widen(dy.values[j]) * slope<Wide<T>>(curve, first, second, widen(x));
        });
    }
}

// y = silu(a) * b of the halves of a row
template <typename T> static __device__ void swiglu(uint64_t len, uint64_t width, const T *xs, T *ys) {
    const uint64_t unit = unit_of(width);
    for (FOURS(i, len, width)) {
        const uint64_t at = i + quotient(i, width) * width;
        const Four<T> b = load(xs + at + width, unit);
        put(ys + i, unit, load(xs + at, unit),
            [&](T a, uint32_t j) { return widen(a) * sigmoid(widen(a)) * widen(b.values[j]); });
    }
}

template <typename T>
static __device__ void swiglu_backward(uint64_t len, uint64_t width, const T *xs, const T *dys, T *dxs) {
    const uint64_t unit = unit_of(width);
    for (FOURS(i, len, width)) {
        const uint64_t at = i + quotient(i, width) * width;
        Four<T> as = load(xs + at, unit), bs = load(xs + at + width, unit);
        const Four<T> dys_here = load(dys + i, unit);
        for (uint32_t j = 0; j < 4; j++) {
            const Wide<T> a = widen(as.values[j]), dy = widen(dys_here.values[j]);
            const Wide<T> s = sigmoid(a);
            as.values[j] = narrow<T>(widen(bs.values[j]) * (s * (1 + a * (1 - s))) * dy);
            bs.values[j] = narrow<T>(a * s * dy);
        }
        store(dxs + at, unit, as);
        store(dxs + at + width, unit, bs);
    }
}

KERNEL(activation, (uint64_t len, uint32_t curve, double first, double second, const T *xs, T *ys),
       (len, curve, first, second, xs, ys))
KERNEL(activation_backward,
       (uint64_t len, uint32_t curve, double first, double second, const T *xs, const T *dys, T *dxs),
       (len, curve, first, second, xs, dys, dxs))
KERNEL(swiglu, (uint64_t len, uint64_t width, const T *xs, T *ys), (len, width, xs, ys))
KERNEL(swiglu_backward, (uint64_t len, uint64_t width, const T *xs, const T *dys, T *dxs), (len, width, xs, dys, dxs))
