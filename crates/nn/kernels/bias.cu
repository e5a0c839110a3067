// Adds a vector to each row in place. src/kernel/cuda/enabled/in_place.rs launches threads for all elements.

#include "rows.cuh"

template <typename T> static __device__ void add_to_rows(uint64_t len, uint64_t width, const T *bias, T *ys) {
    for (FOURS(i, len, width)) {
        const uint64_t column = remainder(i, width);
        const Four<T> b = load(bias + column, unit_of(width));
        put(ys + i, unit_of(width), load(ys + i, unit_of(width)),
            [&](T y, uint32_t j) { return widen(y) + widen(b.values[j]); });
    }
}

KERNEL(add_to_rows, (uint64_t len, uint64_t width, const T *bias, T *ys), (len, width, bias, ys))
