// Decides whether a step is applied, and computes the next counters and the numbers of the rule for all parameters. One block of
// `THREADS`; it changes nothing that is current.

#pragma once

#include "sums.cuh"

// By squaring, as on the host.
static __device__ double power(double base, uint64_t exponent) {
    double result = 1;
    double square = base;
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1) {
            result *= square;
        }
        square *= square;
    }
    return result;
}

// Whether it is a normal number in f32: a loss is multiplied in f32.
static __device__ bool fits(double scale) {
    const uint32_t exponent = __float_as_uint((float)scale) >> 23 & 0xff;
    return exponent != 0 && exponent != 0xff;
}

// Counts a step, as `Progress::count` on the host.
static __device__ void count(const Header &header, double squares, const Control &old, Control &next) {
    Control now = old;
    const double unscale = 1 / old.scale;
    now.factor = unscale;
    now.is_skipped = 0;
    if (!(header.flags & SURVEYS)) {
        now.steps += 1;
        next = now;
        return;
    }
    const bool is_finite = !isnan(squares);
    if (header.flags & HAS_LOSS_SCALE) {
        now.streak = is_finite ? old.streak + 1 : 0;
        const bool grows = is_finite && now.streak >= header.interval;
        if (grows) {
            now.streak = 0;
        }
        const double scale = old.scale * (!is_finite ? header.backoff : grows ? header.growth : 1.);
        if (fits(scale)) {
            now.scale = scale;
        }
    }
    const double norm = sqrt(squares) * unscale;
    now.norm = norm;
    now.has_norm = 1;
    if (is_finite) {
        now.steps += 1;
        // As in PyTorch's `clip_grad_norm_`, with the 1e-6 that guards against a norm of 0.
        const double clip = header.flags & CLIPS_NORM ? header.clip_norm / (norm + 1e-6) : 1.;
        now.factor = unscale * fmin(clip, 1.);
    } else {
        now.skipped += 1;
        now.is_skipped = 1;
    }
    next = now;
}

// The sum over all parameters, in their order; the first thread gets it. Where a parameter has several groups of chunks, all threads add up groups,
// and put the sum of each in the place of its first chunk's.
static __device__ double survey_total(const Arguments &all) {
    __shared__ double sums[THREADS];
    __shared__ uint32_t has_groups;
    double total = 0;
    for (uint64_t start = 0; start < all.parameters; start += THREADS) {
        const uint64_t here = min(all.parameters - start, (uint64_t)THREADS);
        const Slot *slots = all.slots + start, &mine = slots[min((uint64_t)threadIdx.x, here - 1)];
        has_groups = 0;
        __syncthreads();
        if (chunks_of(mine) > GROUP) {
            has_groups = 1;
        }
        __syncthreads();
        for (uint64_t i = 0; has_groups && i < here; i++) {
            const uint64_t chunks = chunks_of(slots[i]);
            // Those of the slots of one group have different threads.
            for (uint64_t first = (threadIdx.x + i) % THREADS * GROUP; first < chunks; first += THREADS * GROUP) {
                double *partials = all.partials + slots[i].first_chunk + first;
                *partials = in_order(partials, min(chunks - first, (uint64_t)GROUP), 1);
            }
        }
        __syncthreads();
        const bool counts = threadIdx.x < here && all.entries[start + threadIdx.x].gradient;
        sums[threadIdx.x] =
            counts ? in_order(all.partials + mine.first_chunk, chunks_of(mine), has_groups ? GROUP : 1) : 0;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (uint64_t i = 0; i < here; i++) {
                total += sums[i];
            }
        }
        __syncthreads();
    }
    return total;
}

// `Rule::coefficients` computes the numbers of a rule.
template <typename Rule> static __device__ void decide(const Arguments &all) {
    const Header &header = all.header;
    const bool is_measured = header.flags & IS_MEASURED;
    const double squares = !(header.flags & SURVEYS) ? 0 : is_measured ? header.squares : survey_total(all);
    __shared__ uint32_t is_skipped;
    if (threadIdx.x == 0) {
        count(header, squares, all.current(), all.control[1]);
        is_skipped = all.next().is_skipped != 0;
    }
    __syncthreads();
    for (uint64_t i = threadIdx.x; i < all.parameters; i += THREADS) {
        const Entry &entry = all.entries[i];
        const bool moves = entry.gradient && !is_skipped;
        const uint64_t step = all.counts[i] + (moves ? 1 : 0);
        Coefficients &coefficients = all.coefficients[i];
        coefficients.step = step;
        coefficients.moves = moves;
        if (moves) {
            Rule::coefficients(header.hyper, entry, step, coefficients.values);
        }
    }
}

// Makes the next counters and counts current. One block of the last launch does it, since none of its blocks reads current ones.
static __device__ void advance(const Arguments &all) {
    if (threadIdx.x == 0) {
        all.control[0] = all.next();
        *all.scale = all.next().scale;
    }
    for (uint64_t i = threadIdx.x; i < all.parameters; i += THREADS) {
        all.counts[i] = all.coefficients[i].step;
    }
}
