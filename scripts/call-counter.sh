#!/usr/bin/env bash
# Builds a library that stands in front of libcuda and counts what a program calls of it, on a real GPU as on the simulated driver:
#
#     mkdir calls && bash scripts/call-counter.sh calls/libcuda.so.1 && ln -s libcuda.so.1 calls/libcuda.so
#     LD_LIBRARY_PATH=$PWD/calls DRIVER=/lib/x86_64-linux-gnu/libcuda.so.1 DRIVER_CALLS=calls.txt PROGRAM
#
# At the program's end DRIVER_CALLS has a line `FUNCTION COUNT` for each function that was called. NVIDIA's own libraries take most
# functions of the driver by cuGetProcAddress, so that what cuBLAS calls is not counted. For x86-64.
set -euo pipefail
out=${1:?file for the library}
crate=$(cd "$(dirname "$0")/../crates/simulated-cuda" && pwd)
names=$(grep -E '^cu[A-Z]' "$crate/symbols.txt")
{
    cat <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* What a function returns that this driver does not have: CUDA_ERROR_NOT_FOUND. */
__attribute__((used)) static int absent(void) { return 500; }

C
    awk 'BEGIN { print "static const char *const NAMES[] = {" } { printf "    \"%s\",\n", $1 } END { print "};" }' <<<"$names"
    cat <<'C'
enum { COUNT = sizeof NAMES / sizeof *NAMES };
__attribute__((visibility("hidden"))) void *driver_functions[COUNT];
__attribute__((visibility("hidden"))) unsigned long driver_calls[COUNT];

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("DRIVER");
    void *driver = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!driver) {
        fprintf(stderr, "DRIVER must be the path of libcuda.so.1: %s\n", path ? dlerror() : "it is not set");
        exit(2);
    }
    for (int at = 0; at < COUNT; at++) {
        void *function = dlsym(driver, NAMES[at]);
        driver_functions[at] = function ? function : (void *)absent;
    }
}

__attribute__((destructor)) static void print(void) {
    const char *path = getenv("DRIVER_CALLS");
    FILE *file = path ? fopen(path, "w") : NULL;
    for (int at = 0; file && at < COUNT; at++)
        if (driver_calls[at]) fprintf(file, "%s %lu\n", NAMES[at], driver_calls[at]);
    if (file) fclose(file);
}

C
    # Each counts and jumps, so that arguments of any number pass as they are.
    awk '{ printf "__asm__(\".globl %s\\n.type %s,@function\\n%s: lock incq driver_calls+%d(%%rip)\\njmp *driver_functions+%d(%%rip)\\n\");\n",
        $1, $1, $1, 8 * (NR - 1), 8 * (NR - 1) }' <<<"$names"
} | cc -O2 -shared -fPIC -x c - -o "$out" -ldl
