// Parts of quantized weights as numbers: src/quantized reads them through src/kernel/cuda/enabled/dequantize.rs. The values are those of candle's
// dequantization on the CPU, bit by bit, rounded once to the type of the output.

#include "rows.cuh"

// The f16 at an even address.
static __device__ __forceinline__ float half_at(const uint8_t *from) { return __half2float(*(const __half *)from); }

// ggml's formats: the elements and bytes of a block, and four neighbours of its elements, of which `at`, the first, is a multiple of 4.

struct Q4_0 {
    static constexpr uint32_t ELEMENTS = 32, BYTES = 18;

    static __device__ __forceinline__ void four(const uint8_t *block, uint32_t at, float *ys) {
        const float d = half_at(block);
        for (uint32_t i = 0; i < 4; i++) {
            const int32_t q = block[2 + at % 16 + i] >> (at / 16 * 4) & 15;
            ys[i] = (float)(q - 8) * d;
        }
    }
};

struct Q8_0 {
    static constexpr uint32_t ELEMENTS = 32, BYTES = 34;

    static __device__ __forceinline__ void four(const uint8_t *block, uint32_t at, float *ys) {
        const float d = half_at(block);
        for (uint32_t i = 0; i < 4; i++) {
            ys[i] = (float)(int8_t)block[2 + at + i] * d;
        }
    }
};

// The scale and the minimum of the elements around `at`, 6 bits each, behind two f16 that they are multiples of.
static __device__ __forceinline__ float2 scale_and_min(const uint8_t *block, uint32_t at) {
    const uint8_t *bits = block + 4;
    const uint32_t j = at / 32;
    uint32_t scale, min;
    if (j < 4) {
        scale = bits[j] & 63;
        min = bits[j + 4] & 63;
    } else {
        scale = bits[j + 4] & 15 | bits[j - 4] >> 6 << 4;
        min = bits[j + 4] >> 4 | bits[j] >> 6 << 4;
    }
    return {half_at(block) * (float)scale, half_at(block + 2) * (float)min};
}

struct Q4_K {
    static constexpr uint32_t ELEMENTS = 256, BYTES = 144;

    static __device__ __forceinline__ void four(const uint8_t *block, uint32_t at, float *ys) {
        const float2 of = scale_and_min(block, at);
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t q = block[16 + at / 64 * 32 + at % 32 + i] >> (at / 32 % 2 * 4) & 15;
            ys[i] = of.x * (float)q - of.y;
        }
    }
};

struct Q5_K {
    static constexpr uint32_t ELEMENTS = 256, BYTES = 176;

    static __device__ __forceinline__ void four(const uint8_t *block, uint32_t at, float *ys) {
        const float2 of = scale_and_min(block, at);
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t low = block[48 + at / 64 * 32 + at % 32 + i] >> (at / 32 % 2 * 4) & 15;
            const uint32_t high = block[16 + at % 32 + i] >> (at / 32) & 1;
            ys[i] = of.x * (float)(low + 16 * high) - of.y;
        }
    }
};

struct Q6_K {
    static constexpr uint32_t ELEMENTS = 256, BYTES = 210;

    static __device__ __forceinline__ void four(const uint8_t *block, uint32_t at, float *ys) {
        const uint32_t half = at / 128, quarter = at % 128 / 32, k = at % 32;
        const float d = half_at(block + 208);
        const float scale = (float)(int8_t)block[192 + 8 * half + 2 * quarter + k / 16];
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t low = block[64 * half + 32 * (quarter % 2) + k + i] >> (quarter / 2 * 4) & 15;
            const uint32_t high = block[128 + 32 * half + k + i] >> (2 * quarter) & 3;
            ys[i] = d * scale * (float)((int32_t)(low | high << 4) - 32);
        }
    }
};

// Some columns of some rows: `len` elements in rows of `columns`, which are whole blocks, from the block at `blocks` on; `stride` are the bytes of
// a row of the weight.
template <typename Format, typename T>
static __device__ __forceinline__ void dequantize(uint64_t len, uint64_t columns, uint64_t stride, const uint8_t *blocks, T *ys) {
    for (FOURS(i, len, Format::ELEMENTS)) {
        const uint64_t column = remainder(i, columns);
        const uint8_t *block = blocks + quotient(i, columns) * stride + column / Format::ELEMENTS * Format::BYTES;
        float values[4];
        Format::four(block, column % Format::ELEMENTS, values);
        put(ys + i, 4, Four<T>(), [&](T, uint32_t j) { return (Wide<T>)values[j]; });
    }
}

#define OF_FORMAT(NAME, FORMAT)                                                                                        \
    template <typename T>                                                                                              \
    static __device__ void NAME(uint64_t len, uint64_t columns, uint64_t stride, const uint8_t *blocks, T *ys) {       \
        dequantize<FORMAT>(len, columns, stride, blocks, ys);                                                          \
    }                                                                                                                  \
    KERNEL(NAME, (uint64_t len, uint64_t columns, uint64_t stride, const uint8_t *blocks, T *ys),                      \
           (len, columns, stride, blocks, ys))

OF_FORMAT(dequantize_q4_0, Q4_0)
OF_FORMAT(dequantize_q8_0, Q8_0)
OF_FORMAT(dequantize_q4_k, Q4_K)
OF_FORMAT(dequantize_q5_k, Q5_K)
OF_FORMAT(dequantize_q6_k, Q6_K)

// NF4: `len` elements in rows of `columns`, from element `first` of the tensor on, whose rows have `width` elements, two a byte, the first in the
// higher bits. A block of 64 has a scale of 8 bits, which is a number of the code in `levels` behind NF4's own 16, times the f32 of 256
// blocks, plus `mean`.
template <typename T>
static __device__ void dequantize_nf4(uint64_t len, uint64_t columns, uint64_t width, uint64_t first, float mean, const uint8_t *codes,
                                      const uint8_t *scales, const float *of_scales, const float *levels, T *ys) {
    for (FOURS(i, len, columns)) {
        const uint64_t from = first + quotient(i, columns) * width + remainder(i, columns);
        float scale = 0;
        for (uint32_t j = 0; j < unit_of(columns); j++) {
            const uint64_t at = from + j;
            if (j == 0 || at % 64 == 0) {
                scale = levels[16 + scales[at / 64]] * of_scales[at / 64 / 256] + mean;
            }
            const uint32_t code = codes[at / 2] >> (at % 2 ? 0 : 4) & 15;
            ys[i + j] = narrow<T>(levels[code] * scale);
        }
    }
}

KERNEL(dequantize_nf4,
       (uint64_t len, uint64_t columns, uint64_t width, uint64_t first, float mean, const uint8_t *codes, const uint8_t *scales,
        const float *of_scales, const float *levels, T *ys),
       (len, columns, width, first, mean, codes, scales, of_scales, levels, ys))
