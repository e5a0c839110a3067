// Shared by the kernels of the fused optimizers: the tables that the host makes (src/optim/cuda), and reading and writing of
// numbers. Operations have the order of the CPU's passes, so that both give the same bits.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>
#include <stdint.h>

#include "axes.cuh"
#include "rounding.cuh"

#define HYPER_PARAMETERS 8
#define THREADS 256
// Elements per partial sum: as on the CPU, so that sums have the same order.
#define CHUNK (16 * 1024)

// `CODED` is for moments of 8 bits alone.
enum Type : uint32_t { F32 = 0, F64 = 1, F16 = 2, BF16 = 3, CODED = 4 };

enum Flag : uint64_t { SURVEYS = 1, CLIPS_NORM = 2, HAS_LOSS_SCALE = 4, ROUNDS_AT_RANDOM = 8, IS_MEASURED = 16 };

// Numbers that all parameters share in one step.
struct Header {
    // In the order of the rule's `hyper_parameters`.
    double hyper[HYPER_PARAMETERS];
    double clip_norm;
    // On the elements of gradients; infinite for none.
    double bound;
    double growth;
    double backoff;
    uint64_t interval;
    uint64_t flags;
    // The sum of all gradients' squares, if it is measured.
    double squares;
};

// Numbers and addresses of one piece of a parameter, or of a whole one, that may change from step to step.
struct Entry {
    // Of the whole parameter, as the gradient is.
    void *parameter;
    // Null if the parameter does not change.
    const void *gradient;
    uint32_t gradient_type;
    // Of the gradient; 0 if it is contiguous.
    uint32_t rank;
    double learning_rate;
    double weight_decay;
};

// Numbers and addresses of one piece that stay the same. Its state has only its own elements.
struct Slot {
    // Its first element in the parameter.
    uint64_t first;
    uint64_t len;
    void *state[2];
    void *master;
    uint32_t type;
    uint32_t state_type;
    uint64_t first_chunk;
    // Where the parameter's noise begins.
    uint64_t stream;
};

// The work of one block: a chunk of a piece, both by their indices.
struct Task {
    uint64_t piece;
    uint64_t chunk;
};

// Counters of steps; see `Progress` on the host.
struct Control {
    uint64_t steps;
    uint64_t skipped;
    uint64_t streak;
    uint64_t has_norm;
    double scale;
    double norm;
    // Factor on gradients.
    double factor;
    uint64_t is_skipped;
};

#define COEFFICIENTS 6

// Numbers of a rule for one parameter in one step.
struct Coefficients {
    double values[COEFFICIENTS];
    // How often the parameter was updated, with this step.
    uint64_t step;
    uint64_t moves;
};

// The header and the addresses of everything. Only the last kernel of a step writes parameters, state, masters, counts, scale and the
// current control.
struct Arguments {
    Header header;
    const Entry *entries;
    // Of strided gradients.
    const Axes *axes;
    const Slot *slots;
    const Task *chunks;
    // The current one and the next.
    Control *control;
    // How often each parameter was updated.
    uint64_t *counts;
    Coefficients *coefficients;
    // One for each chunk.
    double *partials;
    // The loss scale.
    double *scale;
    uint64_t parameters;

    __device__ const Control &current() const { return control[0]; }
    __device__ const Control &next() const { return control[1]; }
};

// As src/optim/cuda/layout.rs has them.
static_assert(sizeof(Header) == 15 * 8 && sizeof(Entry) == 40, "a step");
static_assert(sizeof(Slot) == 64 && sizeof(Task) == 16 && sizeof(Control) == 64, "the tables");
static_assert(sizeof(Coefficients) == 64 && sizeof(Arguments) == 200, "the tables");

template <typename T> struct Of;
template <> struct Of<float> { static constexpr Type type = F32; };
template <> struct Of<double> { static constexpr Type type = F64; };

static __device__ __forceinline__ float root(float value) { return sqrtf(value); }
static __device__ __forceinline__ double root(double value) { return sqrt(value); }

template <typename C> static __device__ __forceinline__ C load(const void *from, uint32_t type, uint64_t at) {
    switch (type) {
    case F64: return (C)((const double *)from)[at];
    case F16: return (C)__half2float(((const __half *)from)[at]);
    case BF16: return (C)__bfloat162float(((const __nv_bfloat16 *)from)[at]);
    default: return (C)((const float *)from)[at];
    }
}

template <typename C> static __device__ __forceinline__ void store(void *into, uint32_t type, uint64_t at, C value) {
    switch (type) {
    case F64: ((double *)into)[at] = (double)value; break;
    case F16: ((__half *)into)[at] = __float2half_rn((float)value); break;
    case BF16: ((__nv_bfloat16 *)into)[at] = __float2bfloat16_rn((float)value); break;
    default: ((float *)into)[at] = (float)value;
    }
}

static __device__ __forceinline__ uint64_t size_of(uint32_t type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

// The address of memory that holds a piece alone, moved so that the elements have the indices that they have in the whole parameter.
static __device__ __forceinline__ void *by_parameter(const void *piece, uint64_t bytes) {
    return piece ? (void *)((uint64_t)piece - bytes) : nullptr;
}

// The elements of a chunk of a piece, counted in the parameter.
struct Stretch {
    uint64_t start;
    uint64_t end;

    __device__ Stretch(const Slot &slot, const Task &chunk)
        : start(slot.first + chunk.chunk * CHUNK), end(min(start + CHUNK, slot.first + slot.len)) {}
};

// A gradient in memory, whose elements can be adjusted while they are read.
template <typename C> struct Gradient {
    const void *values;
    uint32_t type;
    uint32_t rank;
    const Axes &axes;
    C factor;
    C bound;

    __device__ Gradient(const Arguments &all, uint32_t parameter, double factor)
        : values(all.entries[parameter].gradient), type(all.entries[parameter].gradient_type), rank(all.entries[parameter].rank),
          axes(all.axes[parameter]), factor((C)factor), bound((C)all.header.bound) {}

    __device__ C at(uint64_t index) const { return load<C>(values, type, place(index, rank, axes.sizes, axes.strides)); }

    // Scaled (by the inverse loss scale and the clipping of the norm), then clamped. NaN passes.
    __device__ C adjust(C value) const {
        value = value * factor;
        return value > bound ? bound : value < -bound ? -bound : value;
    }

    __device__ C adjusted(uint64_t index) const { return adjust(at(index)); }
};

// A master weight is valid as long as it rounds to the stored parameter. Otherwise something else has written to the parameter, and the
// written value is used.
template <typename C> static __device__ __forceinline__ C refined(C master, C stored, uint32_t type) {
    const float value = (float)master;
    const float rounded = type == F16 ? __half2float(__float2half_rn(value)) : __bfloat162float(__float2bfloat16_rn(value));
    return (C)rounded == stored ? master : stored;
}
