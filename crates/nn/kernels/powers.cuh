// The largest element of a row, and the sum of the powers of all relative to it.

#pragma once

#include "rows.cuh"

template <typename T> static __device__ Wide<T> largest(uint64_t width, const Held<T> &x) {
    Wide<T> max = -INFINITY;
    each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
        const Four<T> four = x.at(i, count, group);
        for (uint32_t j = 0; j < 4; j++) {
            max = j < count ? Maximum::join(max, widen(four.values[j])) : max;
        }
    });
    return over_block<Maximum>(max);
}

template <typename T> static __device__ Wide<T> sum_of_powers(uint64_t width, const Held<T> &x, Wide<T> max) {
    Wide<T> sum = 0;
    each_four<T>(width, [&](uint64_t i, uint64_t count, uint32_t group) {
        const Four<T> four = x.at(i, count, group);
        for (uint32_t j = 0; j < 4; j++) {
            sum += j < count ? exp(widen(four.values[j]) - max) : 0;
        }
    });
    return over_block<Sum>(sum);
}
