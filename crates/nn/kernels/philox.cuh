// Random numbers that are a function of the seed and the position, as in src/kernel/philox.rs.

#pragma once

#include <stdint.h>

#define ROUNDS 7

// The stream of attention's dropout, as in src/kernel/philox.rs.
#define ATTENTION (1ull << 63)

// Philox4x32-7 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
static __device__ void philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t numbers[4]) {
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)block;
    uint32_t c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream;
    uint32_t c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t first = (uint64_t)0xd2511f53u * c0;
        const uint64_t second = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(second >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)second;
        c2 = (uint32_t)(first >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)first;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    numbers[0] = c0;
    numbers[1] = c1;
    numbers[2] = c2;
    numbers[3] = c3;
}
