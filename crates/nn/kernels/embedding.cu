// The gradient of a table: src/embedding.rs launches a block of 256 threads for each row of the table.

#include "rows.cuh"

// Adds up the gradients of the tokens that took the block's row, in their order, so that sums have the same bits in each run. Each thread has
// two groups of four columns. Tokens are looked at 256 at a time: most rows of a large table were taken by none.
template <typename T>
static __device__ void embedding_backward(uint64_t tokens, uint64_t width, uint64_t none, const int64_t *numbers, const T *dys,
                                          T *dtable) {
    constexpr uint32_t THREADS = 256, GROUPS = 2;
    __shared__ uint32_t taken[THREADS / WARP];
    const uint64_t row = blockIdx.x;
    for (uint64_t strip = 4 * threadIdx.x; strip - 4 * threadIdx.x < width; strip += 4 * THREADS * GROUPS) {
        Wide<T> sums[GROUPS][4] = {};
        for (uint64_t first = 0; first < tokens && row != none; first += THREADS) {
            const uint64_t token = first + threadIdx.x;
            const bool is_taken = token < tokens && (uint64_t)numbers[token] == row;
            const uint32_t of_warp = __ballot_sync(ALL_LANES, is_taken);
            if (threadIdx.x % WARP == 0) {
                taken[threadIdx.x / WARP] = of_warp;
            }
            __syncthreads();
            for (uint32_t warp = 0; warp < THREADS / WARP; warp++) {
                const T *dy = dys + (first + warp * WARP) * width;
                for (uint32_t rest = taken[warp]; rest != 0; rest >>= 1, dy += width) {
                    for (uint32_t group = 0; rest & 1 && group < GROUPS; group++) {
                        const uint64_t column = strip + 4 * THREADS * group;
                        const Four<T> four = load(dy + column, column < width ? width - column : 0);
                        for (uint32_t i = 0; i < 4; i++) {
                            sums[group][i] += widen(four.values[i]);
                        }
                    }
                }
            }
            __syncthreads();
        }
        for (uint32_t group = 0; group < GROUPS; group++) {
            const uint64_t column = strip + 4 * THREADS * group;
            Four<T> four;
            for (uint32_t i = 0; i < 4; i++) {
                four.values[i] = narrow<T>(sums[group][i]);
            }
            store(dtable + row * width + column, column < width ? width - column : 0, four);
        }
    }
}

KERNEL(embedding_backward,
       (uint64_t tokens, uint64_t width, uint64_t none, const int64_t *numbers, const T *dys, T *dtable),
       (tokens, width, none, numbers, dys, dtable))
