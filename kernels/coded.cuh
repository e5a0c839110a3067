// Moments of 8 bits, with the bits of src/optim/coded: blocks of 256 elements, each with its largest element in f32, then a byte for each
// element in the dynamic tree code.

#pragma once

#include "rounding.cuh"

#define CODED_BLOCK 256
#define CODED_BYTES (sizeof(float) + CODED_BLOCK)
#define CODES 256
#define DECADES 7

// The upper ends of the decades, and their inverses. Indices are known to the compiler, or each thread reads once.
static __device__ __forceinline__ float end_of(uint32_t decade) {
    constexpr float ends[DECADES] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.f};
    return ends[decade];
}

static __device__ __forceinline__ float tens_of(uint32_t decade) {
    constexpr float tens[DECADES] = {1e6f, 1e5f, 1e4f, 1e3f, 1e2f, 1e1f, 1.f};
    return tens[decade];
}

// The number of positions in a decade; also the byte of the first.
template <bool IS_SIGNED> static __device__ __forceinline__ uint32_t positions(uint32_t decade) {
    return 1u << (IS_SIGNED ? decade : decade + 1);
}

// The byte of the largest number.
template <bool IS_SIGNED> static __device__ __forceinline__ uint32_t largest() { return IS_SIGNED ? 0x80 : 1; }

// The number that a byte stands for.
template <bool IS_SIGNED> static __device__ float number_of(uint32_t code) {
    if (code == largest<IS_SIGNED>()) {
        return 1;
    }
    const uint32_t size = IS_SIGNED ? code & 0x7f : code;
    if (size == 0) {
        return 0;
    }
    uint32_t decade = 0;
    while (decade + 1 < DECADES && size >= positions<IS_SIGNED>(decade + 1)) {
        decade++;
    }
    const uint32_t count = positions<IS_SIGNED>(decade);
    const float number = end_of(decade) * (0.1f + ((float)(size - count) + 0.5f) * (0.9f / (float)count));
    return size == code ? number : -number;
}

// The byte of a number that times `factor` is between -1 and 1. Between two numbers of the code it is the upper one where its part of the way is above `chance`:
// the nearer one for a half.
template <bool IS_SIGNED> static __device__ __forceinline__ uint8_t encode(float number, float factor, float chance) {
    const float size = fminf(fabsf(number * factor), 1.f);
    float tens = tens_of(0);
    int32_t count = positions<IS_SIGNED>(0);
#pragma unroll
    for (uint32_t decade = 1; decade < DECADES; decade++) {
        if (size >= end_of(decade) * (0.1f + 0.45f / (float)positions<IS_SIGNED>(decade))) {
            tens = tens_of(decade);
            count = positions<IS_SIGNED>(decade);
        }
    }
    const float place = (size * tens - 0.1f) * ((float)count * (1.f / 0.9f)) - 0.5f;
    const int32_t position = min((int32_t)place, count - 1);
    // Behind the last number of a decade the next is three times as far as within it, and the largest half as far.
    const bool is_highest = count == positions<IS_SIGNED>(DECADES - 1);
    const float steps = position != count - 1 ? 1.f : is_highest ? 2.f : 1.f / 3.f;
    const bool is_up = (place - (float)position) * steps > chance || size >= 0.999999f;
    const int32_t code = count + position + is_up;
    if (IS_SIGNED) {
        // Below the lowest number is 0.
        if (!(size * (1.f / 5.5e-7f) > chance)) {
            return 0;
        }
        // Only the positive largest has a byte.
        return (uint8_t)(number * factor < 0 ? min(code, 0x7f) | 0x80 : code);
    }
    // A second moment that is not 0 stays above 0, also if the product is 0.
    if (number == 0) {
        return 0;
    }
    return (uint8_t)(code == 256 ? 1 : code);
}

// A magnitude in the order of magnitudes; the last bit says that the value is positive.
static __device__ __forceinline__ uint32_t key_of(float value) {
    const uint32_t bits = __float_as_uint(value);
    return bits << 1 | (~bits >> 31);
}

// The scale of a block by its largest key: NaN if an element is not finite, and 0 if none is a normal number. An infinite second moment
// counts as the largest finite number, because the square of a finite gradient may overflow.
template <bool IS_SIGNED> static __device__ __forceinline__ float scale_of(uint32_t key) {
    if (!IS_SIGNED && key >> 1 == 0x7f800000u) {
        return 3.402823466e38f;
    }
    const float size = __uint_as_float(key >> 1);
    if (key >> 1 >= 0x7f800000u) {
        return __uint_as_float(0x7fc00000u);
    }
    if (key >> 1 < 0x00800000u) {
        return 0;
    }
    return key & 1 ? size : -size;
}

// Elements of a coded block that a thread of a warp holds.
#define OF_A_BLOCK (CODED_BLOCK / 32)

// The elements of one moment of 8 bits that a thread holds, the 32nd of the block each. All threads of a warp take part.
template <bool IS_SIGNED> struct Coded {
    uint8_t *const bytes;
    float values[OF_A_BLOCK];

    __device__ __forceinline__ Coded(void *state, uint64_t at, uint32_t count, const float *numbers)
        : bytes(state ? (uint8_t *)state + at / CODED_BLOCK * CODED_BYTES : nullptr) {
        const float scale = bytes ? *(const float *)bytes : 0;
        for (uint32_t i = 0; i < OF_A_BLOCK; i++) {
            const uint32_t place = 32 * i + threadIdx.x % 32;
            values[i] = bytes && place < count ? numbers[bytes[sizeof(float) + place]] * scale : 0;
        }
    }

    // Rounds at random.
    __device__ __forceinline__ void store(uint64_t at, uint32_t count, uint64_t seed) const {
        uint32_t key = 0;
        for (uint32_t i = 0; i < OF_A_BLOCK; i++) {
            key = max(key, 32 * i + threadIdx.x % 32 < count ? key_of(values[i]) : 0);
        }
        for (uint32_t step = 16; step > 0; step /= 2) {
            key = max(key, __shfl_xor_sync(0xffffffffu, key, step));
        }
        if (!bytes) {
            return;
        }
        const float scale = scale_of<IS_SIGNED>(key);
        const bool is_normal = scale != 0 && !isnan(scale);
        const float factor = 1 / scale;
        for (uint32_t i = 0; i < OF_A_BLOCK; i++) {
            const uint32_t place = 32 * i + threadIdx.x % 32;
            if (place < count) {
                const float chance = chance_of(noise(at + place, seed));
                bytes[sizeof(float) + place] = is_normal ? encode<IS_SIGNED>(values[i], factor, chance) : 0;
            }
        }
        if (threadIdx.x % 32 == 0) {
            *(float *)bytes = scale;
        }
    }
};
