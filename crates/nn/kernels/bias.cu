// Adds a vector to each row in place. src/kernel/cuda/enabled/in_place.rs launches threads for all elements.

#include "rows.cuh"

template <typename T> static __device__ void add_to_rows(uint64_t len, uint64_t width, const T *bias, T *ys) {
    for (FOURS(i, len, width)) {
        const uint64_t column = remainder(i, width);
        Four<T> y = load(ys + i, unit_of(width));
        const Four<T> b = load(bias + column, unit_of(width));
        for (uint32_t j = 0; j < 4; j++) {
            y.values[j] = narrow<T>(widen(y.values[j]) + widen(b.values[j]));
        }
        store(ys + i, unit_of(width), y);
    }
}

KERNEL(add_to_rows, (uint64_t len, uint64_t width, const T *bias, T *ys), (len, width, bias, ys))
