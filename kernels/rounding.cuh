// Stochastic rounding, with the bits of src/mix.rs and src/optim/cpu/numbers.rs. The noise depends on parameter, step and element alone.

#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

static __device__ __forceinline__ uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

// A hash of 32 bits, with the multipliers and shifts of Wellons' `lowbias32` (2018). Elements from a multiple of 2^32 on have other noise.
static __device__ __forceinline__ uint32_t noise(uint64_t index, uint64_t seed) {
    uint32_t x = (uint32_t)index * 0x9e3779b9u ^ (uint32_t)seed;
    x = (x ^ x >> 16) * 0x7feb352du ^ (uint32_t)(seed >> 32) + (uint32_t)(index >> 32) * 0x85ebca6bu;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// Noise as a number from 0 to 1, without 1.
static __device__ __forceinline__ float chance_of(uint32_t noise) { return (float)(noise >> 8) / (float)(1 << 24); }

// The seed of a parameter's noise in its `step`-th update. `stream` is the parameter's own.
static __device__ __forceinline__ uint64_t seed_of(uint64_t step, uint64_t stream) { return mix(stream ^ mix(step)); }

// The seed of one of the tensors that an update writes.
static __device__ __forceinline__ uint64_t part_of(uint64_t seed, uint64_t index) { return mix(seed + index); }

static __device__ __forceinline__ __nv_bfloat16 round_at_random(float value, uint64_t place, uint64_t seed) {
    if (!isfinite(value)) {
        return __float2bfloat16_rn(value);
    }
    const uint32_t bits = __float_as_uint(value) + (noise(place, seed) & 0xffff);
    return __ushort_as_bfloat16((unsigned short)(bits >> 16));
}
