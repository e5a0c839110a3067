// Attention: what happens to a chunk of scores between products of matrices. src/attention/chunks/kernels.rs launches a block
// for each row of (batch, heads, queries, keys). Scores and weights are those of the chunk; statistics (batch, heads, queries, 2), outputs
// and their gradients (batch, queries, heads, value width) are those of all samples, heads and queries.

#include "philox.cuh"
#include "rows.cuh"

struct Chunk {
    uint64_t heads; // of a sample, in the chunk
    uint64_t queries; // of the chunk
    uint64_t keys;    // of the chunk: the first ones
    uint64_t first;   // query
    uint64_t all_queries;
    uint64_t all_keys;
    int64_t first_seen;        // the first key that the first of all queries sees
    int64_t last_seen;         // the last one
    int64_t offset;            // the key at the position of the first of all queries
    uint64_t mask_strides[4];  // 0 where the mask is broadcast
    double softcap;            // 0 for none
    double factor;             // of weights that dropout keeps; 0 without dropout
    uint64_t seed;             // of dropout
    uint64_t threshold;
    uint64_t first_head;  // among those of all samples
    uint64_t value_width; // of a row of values
    uint64_t all_heads;   // of a sample
};
static_assert(sizeof(Chunk) == 20 * 8, "src/attention/chunks/kernels.rs passes 20 numbers of 8 bytes");

// The maximum of a row that sees nothing: exp(-infinity - it) is 0.
template <typename W> struct Least;
template <> struct Least<float> {
    static constexpr float value = -3.40282347e+38f;
};
template <> struct Least<double> {
    static constexpr double value = -1.7976931348623157e+308;
};

template <typename T> struct Row {
    typedef Wide<T> W;
    const Chunk &chunk;
    const T *mask; // of the row; null for none
    W alibi;       // the slope of the head; 0 for none
    int64_t at;    // the key at the query's position
    uint64_t from; // the keys that the query sees
    uint64_t seen;
    uint64_t first_score;
    uint64_t start;      // of the row in the chunk
    uint64_t statistics; // of the row among all
    uint64_t values;     // the same in outputs

    __device__ Row(const Chunk &chunk, const T *all, const W *slopes) : chunk(chunk) {
        const uint64_t row = blockIdx.x;
        const uint64_t query = chunk.first + row % chunk.queries;
        const uint64_t head = row / chunk.queries % chunk.heads;
        const uint64_t batch = row / chunk.queries / chunk.heads;
        const uint64_t *strides = chunk.mask_strides;
        mask = all == nullptr ? nullptr : all + batch * strides[0] + head * strides[1] + query * strides[2];
        alibi = slopes == nullptr ? (W)0 : slopes[head];
        at = (int64_t)query + chunk.offset;
        const int64_t nearest = (int64_t)query + chunk.first_seen, last = (int64_t)query + chunk.last_seen;
        from = nearest < 0 ? 0 : (uint64_t)nearest;
        seen = last < 0 ? 0 : (uint64_t)last >= chunk.keys ? chunk.keys : (uint64_t)last + 1;
        const uint64_t of_all = chunk.first_head + batch * chunk.heads + head; // among the heads of all samples
        const uint64_t all_before = of_all * chunk.all_queries + query;
        first_score = all_before * chunk.all_keys;
        start = row * chunk.keys;
        statistics = 2 * all_before;
        const uint64_t sample = of_all / chunk.all_heads;
        const uint64_t position = sample * chunk.all_queries + query;
        values = (position * chunk.all_heads + of_all % chunk.all_heads) * chunk.value_width;
    }

    // What softmax takes. `slope` is the derivative of soft capping.
    __device__ W logit(W x, uint64_t key, W &slope) const {
        slope = 1;
        if (chunk.softcap > 0) {
            const W cap = (W)chunk.softcap;
            const W t = tanh(x / cap);
            slope = 1 - t * t;
            x = t * cap;
        }
        x = mask == nullptr ? x : x + widen(mask[key * chunk.mask_strides[3]]);
        // Numbers of 64 bits are slow to convert.
        if (alibi != 0) {
            const int64_t distance = at - (int64_t)key;
            x -= alibi * (W)(distance < 0 ? -distance : distance);
        }
        return x;
    }

    // Calls `take` for the threads' share of the keys from `low` to `high`: with the first of four neighbouring keys, for which dropout takes the four
    // numbers of one block of Philox, and with which of these four are there, from one up to another. The first key may be before the row.
    template <typename F> __device__ __forceinline__ void each_four_keys(uint64_t low, uint64_t high, F take) const {
        const uint32_t shift = first_score % 4;
        for (uint64_t group = (low + shift) / 4 + threadIdx.x; 4 * group < high + shift; group += blockDim.x) {
            const int64_t key = (int64_t)(4 * group) - shift;
            const uint64_t skip = key < (int64_t)low ? low - key : 0;
            take(key, skip, high - key);
        }
    }

    // What dropout multiplies the weights of four keys by.
    __device__ __forceinline__ Four<W> kept(int64_t key) const {
        Four<W> factors = {1, 1, 1, 1};
        if (chunk.factor != 0) {
            uint32_t numbers[4];
            philox(chunk.seed, ATTENTION, (first_score + key) / 4, numbers);
            for (uint32_t i = 0; i < 4; i++) {
                factors.values[i] = numbers[i] < chunk.threshold ? (W)0 : (W)chunk.factor;
            }
        }
        return factors;
    }

    __device__ __forceinline__ bool sees(uint64_t key) const { return key >= from && key < seen; }
};

// Scores to weights after dropout, and for each row its maximum and 1 / the sum of exp(x - maximum), or 0 if it sees nothing. A row is
// read twice: each thread keeps the sum of what it has seen relative to the largest so far.
template <typename T>
static __device__ void attention_weights(const Chunk &chunk, const T *mask, const Wide<T> *slopes,
                                         const Wide<T> *scores, Wide<T> *statistics, T *weights) {
    typedef Wide<T> W;
    const Row<T> row(chunk, mask, slopes);
    W slope;
    W own = Least<W>::value, sum = 0;
    row.each_four_keys(row.from, row.seen, [&](int64_t key, uint64_t skip, uint64_t count) {
        const Four<W> score = load(scores + row.start + key, count, skip);
        for (uint32_t i = 0; i < 4; i++) {
            if (i < skip || i >= count) {
                continue;
            }
            const W x = row.logit(score.values[i], key + i, slope);
            if (x > own) {
                sum = sum * exp(own - x) + 1;
                own = x;
            } else {
                sum += exp(x - own);
            }
        }
    });
    const W most = over_block<Maximum>(own);
    sum = over_block<Sum>(sum * exp(own - most));
    const W inverse = sum == 0 ? 0 : 1 / sum;
    if (threadIdx.x == 0) {
        statistics[row.statistics] = most;
        statistics[row.statistics + 1] = inverse;
    }
    row.each_four_keys(0, chunk.keys, [&](int64_t key, uint64_t skip, uint64_t count) {
        const Four<W> score = load(scores + row.start + key, count, skip), kept = row.kept(key);
        Four<T> weight;
        for (uint32_t i = 0; i < 4; i++) {
            W value = 0;
            if (i >= skip && i < count && row.sees(key + i)) {
                value = exp(row.logit(score.values[i], key + i, slope) - most) * inverse * kept.values[i];
            }
            weight.values[i] = narrow<T>(value);
        }
        store(weights + row.start + key, count, weight, skip);
    });
}

// Scores to weights after dropout, and gradients of weights to gradients of scores. Of each row of weights, the sum of weight * gradient is
// that of output * its gradient.
template <typename T>
static __device__ void attention_gradients(const Chunk &chunk, const T *mask, const Wide<T> *slopes,
                                           const Wide<T> *statistics, const T *outputs, const T *of_outputs,
                                           const Wide<T> *scores, const Wide<T> *gradients, T *weights,
                                           T *of_scores) {
    typedef Wide<T> W;
    const Row<T> row(chunk, mask, slopes);
    const W most = statistics[row.statistics], inverse = statistics[row.statistics + 1];
    W sum = 0;
    for (uint64_t at = 4 * threadIdx.x; at < chunk.value_width; at += 4 * blockDim.x) {
        const uint64_t count = chunk.value_width - at;
        const Four<T> output = load(outputs + row.values + at, count), gradient = load(of_outputs + row.values + at, count);
        for (uint32_t i = 0; i < 4; i++) {
            sum += widen(output.values[i]) * widen(gradient.values[i]);
        }
    }
    sum = over_block<Sum>(sum);
    row.each_four_keys(0, chunk.keys, [&](int64_t key, uint64_t skip, uint64_t count) {
        const Four<W> score = load(scores + row.start + key, count, skip), kept = row.kept(key);
        const Four<W> gradient = load(gradients + row.start + key, count, skip);
        Four<T> weight, of_score;
        for (uint32_t i = 0; i < 4; i++) {
            W value = 0, of_value = 0;
            if (i >= skip && i < count && row.sees(key + i)) {
                W slope;
                const W whole = exp(row.logit(score.values[i], key + i, slope) - most) * inverse;
                value = whole * kept.values[i];
                of_value = whole * (gradient.values[i] * kept.values[i] - sum) * slope;
            }
            weight.values[i] = narrow<T>(value);
            of_score.values[i] = narrow<T>(of_value);
        }
        store(weights + row.start + key, count, weight, skip);
        store(of_scores + row.start + key, count, of_score, skip);
    });
}

KERNEL(attention_weights,
       (const Chunk chunk, const T *mask, const Wide<T> *slopes, const Wide<T> *scores, Wide<T> *statistics,
        T *weights),
       (chunk, mask, slopes, scores, statistics, weights))
KERNEL(attention_gradients,
       (const Chunk chunk, const T *mask, const Wide<T> *slopes, const Wide<T> *statistics, const T *outputs,
        const T *of_outputs, const Wide<T> *scores, const Wide<T> *gradients, T *weights, T *of_scores),
       (chunk, mask, slopes, statistics, outputs, of_outputs, scores, gradients, weights, of_scores))
