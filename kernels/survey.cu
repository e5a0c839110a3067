// Reads all gradients before the first parameter changes: the sum of squares of each chunk, NaN if an element is not finite.

#include "sums.cuh"

extern "C" __global__ void survey(const Arguments all) {
    const Task chunk = all.chunks[blockIdx.x];
    if (!all.entries[chunk.piece].gradient) {
        return;
    }
    const Gradient<double> gradient(all, chunk.piece, 1);
    const Stretch stretch(all.slots[chunk.piece], chunk);
    const double total = chunk_squares(stretch.start, stretch.end, [&](uint64_t i) { return gradient.at(i); });
    if (threadIdx.x == 0) {
        all.partials[blockIdx.x] = total;
    }
}
