// Stochastic rounding. The noise depends on step and element alone.

#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

// A hash of 32 bits, with the multipliers and shifts of Wellons' `lowbias32` (2018).
static __device__ __forceinline__ uint32_t noise(uint32_t index, uint32_t seed) {
    uint32_t x = index * 0x9e3779b9u ^ seed;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// Noise as a number from 0 to 1, without 1.
static __device__ __forceinline__ float chance_of(uint32_t noise) { return (float)(noise >> 8) / (float)(1 << 24); }

// The seed of a parameter's noise in its `step`-th update.
static __device__ __forceinline__ uint32_t seed_of(uint64_t step) { return (uint32_t)step * 0x9e3779b9u; }

static __device__ __forceinline__ __nv_bfloat16 round_at_random(float value, uint32_t place, uint32_t seed) {
    if (!isfinite(value)) {
        return __float2bfloat16_rn(value);
    }
    const uint32_t bits = __float_as_uint(value) + (noise(place, seed) & 0xffff);
    return __ushort_as_bfloat16((unsigned short)(bits >> 16));
}
