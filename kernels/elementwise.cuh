// The one pass of a rule that treats each element by itself.

#pragma once

#include "coded.cuh"
#include "decide.cuh"

// Blocks per chunk, so that small models fill a GPU too.
#define PARTS 4
#define AT_ONCE 4

struct alignas(8) Halves {
    uint16_t bits[AT_ONCE];
};

// Loads `COUNT` elements: 1, or `AT_ONCE` aligned ones by one access.
template <typename C, uint32_t COUNT>
static __device__ __forceinline__ void load_some(const void *from, uint32_t type, uint64_t at, C (&into)[COUNT]) {
    if constexpr (COUNT == 1) {
        into[0] = load<C>(from, type, at);
    } else if (type == F64) {
        const double2 *const pairs = (const double2 *)((const double *)from + at);
        const double2 low = pairs[0], high = pairs[1];
        into[0] = (C)low.x, into[1] = (C)low.y, into[2] = (C)high.x, into[3] = (C)high.y;
    } else if (type == F32) {
        const float4 values = *(const float4 *)((const float *)from + at);
        into[0] = (C)values.x, into[1] = (C)values.y, into[2] = (C)values.z, into[3] = (C)values.w;
    } else {
        const Halves values = *(const Halves *)((const uint16_t *)from + at);
        for (uint32_t i = 0; i < COUNT; i++) {
            into[i] = (C)(type == F16 ? __half2float(__ushort_as_half(values.bits[i]))
                                      : __bfloat162float(__ushort_as_bfloat16(values.bits[i])));
        }
    }
}

template <typename C, uint32_t COUNT>
static __device__ __forceinline__ void store_some(void *into, uint32_t type, uint64_t at, const C (&from)[COUNT]) {
    if constexpr (COUNT == 1) {
        store(into, type, at, from[0]);
    } else if (type == F64) {
        double2 *const pairs = (double2 *)((double *)into + at);
        pairs[0] = make_double2(from[0], from[1]);
        pairs[1] = make_double2(from[2], from[3]);
    } else if (type == F32) {
        *(float4 *)((float *)into + at) = make_float4((float)from[0], (float)from[1], (float)from[2], (float)from[3]);
    } else {
        Halves values;
        for (uint32_t i = 0; i < COUNT; i++) {
            values.bits[i] = type == F16 ? __half_as_ushort(__float2half_rn((float)from[i]))
                                         : __bfloat16_as_ushort(__float2bfloat16_rn((float)from[i]));
        }
        *(Halves *)((uint16_t *)into + at) = values;
    }
}

template <typename C, uint32_t COUNT>
static __device__ __forceinline__ void store_noisy(void *into, uint32_t type, uint64_t at, uint64_t seed,
                                                   const C (&from)[COUNT]) {
    if (type != BF16) {
        store_some(into, type, at, from);
        return;
    }
    Halves values;
    for (uint32_t i = 0; i < COUNT; i++) {
        values.bits[i] = __bfloat16_as_ushort(round_at_random((float)from[i], at + i, seed));
    }
    if constexpr (COUNT == 1) {
        ((uint16_t *)into)[at] = values.bits[0];
    } else {
        *(Halves *)((uint16_t *)into + at) = values;
    }
}

// A parameter in full precision.
struct Values {
    void *parameter;
    void *master;
    uint32_t type;
    // Whether it is rounded at random.
    bool is_noisy;
    uint64_t seed;

    __device__ Values(const Arguments &all, uint32_t index)
        : parameter(all.entries[index].parameter),
          master(by_parameter(all.slots[index].master, all.slots[index].first * sizeof(float))), type(all.slots[index].type),
          is_noisy((all.header.flags & ROUNDS_AT_RANDOM) && type == BF16),
          seed(is_noisy ? part_of(seed_of(all.coefficients[index].step, all.slots[index].stream), 2) : 0) {}

    template <typename C, uint32_t COUNT> __device__ __forceinline__ void read(uint64_t at, C (&into)[COUNT]) const {
        load_some(parameter, type, at, into);
        if (master) {
            C masters[COUNT];
            load_some(master, F32, at, masters);
            for (uint32_t i = 0; i < COUNT; i++) {
                into[i] = refined(masters[i], into[i], type);
            }
        }
    }

    template <typename C, uint32_t COUNT> __device__ __forceinline__ void write(uint64_t at, const C (&from)[COUNT]) const {
        if (master) {
            store_some(master, F32, at, from);
        }
        if (is_noisy) {
            store_noisy(parameter, type, at, seed, from);
        } else {
            store_some(parameter, type, at, from);
        }
    }
};

template <typename C, uint32_t COUNT, typename Rule>
static __device__ __forceinline__ void move_range(const Rule &rule, const Gradient<C> &gradient, const Values &values,
                                                  const Slot &slot, uint64_t seed, uint64_t start, uint64_t end) {
    for (uint64_t at = start + threadIdx.x * COUNT; at < end; at += THREADS * COUNT) {
        C p[COUNT], g[COUNT], first[COUNT] = {}, second[COUNT] = {};
        if constexpr (COUNT == 1) {
            g[0] = gradient.at(at);
        } else {
            load_some(gradient.values, gradient.type, at, g);
        }
        values.read(at, p);
        if (slot.state[0]) {
            load_some(slot.state[0], slot.state_type, at, first);
        }
        if (slot.state[1]) {
            load_some(slot.state[1], slot.state_type, at, second);
        }
        for (uint32_t i = 0; i < COUNT; i++) {
            rule.update(p[i], gradient.adjust(g[i]), first[i], second[i]);
        }
        if (slot.state[0]) {
            store_noisy(slot.state[0], slot.state_type, at, part_of(seed, 0), first);
        }
        if (slot.state[1]) {
            store_noisy(slot.state[1], slot.state_type, at, part_of(seed, 1), second);
        }
        values.write(at, p);
    }
}

static_assert(CHUNK / PARTS % CODED_BLOCK == 0 && THREADS == CODES, "whole blocks, and a number for each thread");

// As `move_range`, with moments of 8 bits: a warp moves a block at a time.
template <typename Rule>
static __device__ __forceinline__ void move_coded(const Rule &rule, const Gradient<float> &gradient, const Values &values,
                                                  const Slot &slot, uint64_t seed, uint64_t start, uint64_t end) {
    __shared__ float numbers[2][CODES];
    numbers[0][threadIdx.x] = number_of<true>(threadIdx.x);
    numbers[1][threadIdx.x] = number_of<false>(threadIdx.x);
    __syncthreads();
    for (uint64_t at = start + threadIdx.x / 32 * CODED_BLOCK; at < end; at += THREADS / 32 * CODED_BLOCK) {
        const uint32_t count = (uint32_t)min(end - at, (uint64_t)CODED_BLOCK);
        Coded<true> first(slot.state[0], at, count, numbers[0]);
        Coded<false> second(slot.state[1], at, count, numbers[1]);
        for (uint32_t i = 0; i < OF_A_BLOCK; i++) {
            const uint64_t place = at + 32 * i + threadIdx.x % 32;
            if (place < end) {
                float p[1];
                values.read(place, p);
                rule.update(p[0], gradient.adjusted(place), first.values[i], second.values[i]);
                values.write(place, p);
            }
        }
        first.store(at, count, part_of(seed, 0));
        second.store(at, count, part_of(seed, 1));
    }
}

// The slot with its state where kernels index it by the parameter's elements. A piece begins with a block of 8 bits.
static __device__ __forceinline__ Slot by_parameter(const Slot &piece) {
    Slot slot = piece;
    const bool is_coded = slot.state_type == CODED;
    const uint64_t bytes = is_coded ? slot.first / CODED_BLOCK * CODED_BYTES : slot.first * size_of(slot.state_type);
    slot.state[0] = by_parameter(slot.state[0], bytes);
    slot.state[1] = by_parameter(slot.state[1], bytes);
    return slot;
}

template <template <typename> class Rule, typename C>
static __device__ __forceinline__ void move_part(const Arguments &all, uint32_t index, uint64_t start, uint64_t end) {
    const Slot slot = by_parameter(all.slots[index]);
    const Values values(all, index);
    const Gradient<C> gradient(all, index, all.next().factor);
    const Coefficients &coefficients = all.coefficients[index];
    const Rule<C> rule(all.header.hyper, coefficients.values);
    const uint64_t seed = seed_of(coefficients.step, slot.stream);
    if constexpr (sizeof(C) == sizeof(float)) {
        if (slot.state_type == CODED) {
            move_coded(rule, gradient, values, slot, seed, start, end);
            return;
        }
    }
    const uint64_t places = (uint64_t)values.parameter | (uint64_t)values.master | (uint64_t)gradient.values |
                            (uint64_t)slot.state[0] | (uint64_t)slot.state[1];
    const bool is_aligned = places % 16 == 0 && start % AT_ONCE == 0 && gradient.rank == 0;
    const uint64_t whole = is_aligned && start < end ? end - (end - start) % AT_ONCE : start;
    move_range<C, AT_ONCE>(rule, gradient, values, slot, seed, start, whole);
    move_range<C, 1>(rule, gradient, values, slot, seed, whole, end);
}

// Updates all parameters: the last launch of a step.
template <template <typename> class Rule> static __device__ void move_all(const Arguments &all) {
    if (blockIdx.x == 0 && blockIdx.y == 0) {
        advance(all);
    }
    const Task chunk = all.chunks[blockIdx.x];
    if (!all.coefficients[chunk.piece].moves) {
        return;
    }
    const Slot &slot = all.slots[chunk.piece];
    const Stretch stretch(slot, chunk);
    const uint64_t start = stretch.start + blockIdx.y * (CHUNK / PARTS);
    const uint64_t end = min(start + CHUNK / PARTS, stretch.end);
    if (slot.type == F64) {
        move_part<Rule, double>(all, chunk.piece, start, end);
    } else {
        move_part<Rule, float>(all, chunk.piece, start, end);
    }
}
