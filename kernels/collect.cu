// Copies to host memory what an update by the host's cores reads: gradients and parameters, and the decision.

#include "fused.cuh"

extern "C" __global__ void collect(const Arguments all, const Task *tasks) {
    const Control &next = all.next();
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) {
            all.report[0] = (uint64_t)__double_as_longlong(next.factor);
            all.report[1] = next.is_skipped;
        }
        for (uint64_t i = threadIdx.x; i < all.parameters; i += THREADS) {
            all.report[2 + i] = all.coefficients[i].moves ? all.coefficients[i].step : 0;
        }
    }
    const Task chunk = tasks[blockIdx.x];
    if (!all.coefficients[chunk.parameter].moves) {
        return;
    }
    const Entry &entry = all.entries[chunk.parameter];
    const Slot &slot = all.slots[chunk.parameter];
    const Stretch stretch(slot, chunk);
    void *const values = by_parameter(slot.parameter_copy, slot.first * size_of(slot.type));
    copy_range(values, entry.parameter, slot.type, stretch.start, stretch.end);
    void *const copy = by_parameter(slot.gradient_copy, slot.first * size_of(entry.gradient_type));
    if (entry.rank == 0) {
        copy_range(copy, entry.gradient, entry.gradient_type, stretch.start, stretch.end);
        return;
    }
    const Gradient<double> gradient(all, chunk.parameter, 1);
    for (uint64_t i = stretch.start + threadIdx.x; i < stretch.end; i += THREADS) {
        store(copy, entry.gradient_type, i, gradient.at(i));
    }
}
