// Rotary position embeddings of queries and keys in one launch: src/rotary_emb.rs.

#include "rows.cuh"

// Of each of two tensors, of (samples, heads, time, 2 * half) or with `time_first` of (samples, time, heads, 2 * half), rotates pairs of
// elements by the angles of (time, half), or with `by_sample` of (samples, time, half); with `back` by the negative ones.
template <typename T>
static __device__ void rotate_both(uint64_t pairs_of_q, uint64_t pairs_of_k, uint64_t heads_of_q, uint64_t heads_of_k,
                                   uint64_t time, uint64_t half, uint32_t neighbours, uint32_t time_first,
                                   uint32_t by_sample, uint32_t back, const T *cos, const T *sin, const T *q,
                                   const T *k, T *yq, T *yk) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < pairs_of_q + pairs_of_k;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const bool is_q = i < pairs_of_q;
        const uint64_t at = is_q ? i : i - pairs_of_q;
        const uint64_t heads = is_q ? heads_of_q : heads_of_k;
        const uint64_t row = divided(at, half);
        const uint64_t pair = at - row * half;
        const uint64_t outer = divided(row, time_first ? heads : time);
        const uint64_t sample = divided(outer, time_first ? time : heads);
        const uint64_t step = time_first ? outer - sample * time : row - outer * time;
        const uint64_t angle = ((by_sample ? sample * time : 0) + step) * half + pair;
        const uint64_t first = row * 2 * half + (neighbours ? 2 * pair : pair);
        const uint64_t second = first + (neighbours ? 1 : half);
        const T *x = is_q ? q : k;
        T *y = is_q ? yq : yk;
        const Wide<T> a = widen(x[first]), b = widen(x[second]), c = widen(cos[angle]);
        const Wide<T> s = back ? -widen(sin[angle]) : widen(sin[angle]);
        y[first] = narrow<T>(a * c - b * s);
        y[second] = narrow<T>(a * s + b * c);
    }
}

KERNEL(rotate_both,
       (uint64_t pairs_of_q, uint64_t pairs_of_k, uint64_t heads_of_q, uint64_t heads_of_k, uint64_t time, uint64_t half,
        uint32_t neighbours, uint32_t time_first, uint32_t by_sample, uint32_t back, const T *cos, const T *sin,
        const T *q, const T *k, T *yq, T *yk),
       (pairs_of_q, pairs_of_k, heads_of_q, heads_of_k, time, half, neighbours, time_first, by_sample, back, cos, sin, q,
        k, yq, yk))
