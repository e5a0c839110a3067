#!/usr/bin/env bash
# Builds the simulated CUDA libraries into a folder, for running (LD_LIBRARY_PATH), and what programs are linked with (-L or LIBRARY_PATH)
# into its folders `stubs` (CUDA 13) and `stubs-12` (CUDA 12).
# Usage: build.sh OUT_DIR [LIBRARY]
# Where LIBRARY is given, the libsimulated_cuda.so that cargo has already built, nothing is compiled but the stubs.
set -euo pipefail
out=${1:?folder for the libraries}
crate=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out/stubs" "$out/stubs-12"
out=$(cd "$out" && pwd)

built=${2:-}
if [ -z "$built" ]; then
    cargo build --quiet --release --locked --manifest-path "$crate/Cargo.toml"
    built=${CARGO_TARGET_DIR:-$crate/target}/release/libsimulated_cuda.so
fi
if ! cmp -s "$built" "$out/libcuda.so.1"; then
    # Copied beside the old one and renamed, because a running program may have the old one mapped.
    cp "$built" "$out/libcuda.so.1.new"
    mv "$out/libcuda.so.1.new" "$out/libcuda.so.1"
fi

# All names lead to the one library, which the loader then maps once: it knows a file that it has loaded by its inode.
name_it() {
    local name
    for name in "$1" "${1%.so.*}.so"; do
        [ "$name" = libcuda.so.1 ] || [ "$(readlink "$out/$name")" = libcuda.so.1 ] || ln -sfn libcuda.so.1 "$out/$name"
    done
}
# A program that is linked with those would need libcuda alone, and would not find cuBLAS on a machine with a GPU. So it is linked with
# stubs, each with the functions and the soname of its library.
stub() { # folder, soname, functions
    sed 's/.*/void &(void) {}/' <<<"$3" |
        cc -shared -nostdlib -fno-builtin -x c - -o "$out/$1/$2.$$" -Wl,-soname,"$2"
    mv "$out/$1/$2.$$" "$out/$1/${2%.so.*}.so"
}
names=$(nm -D --defined-only "$out/libcuda.so.1" | awk '{ print $3 }')
while read -r of_12 of_13 pattern; do
    functions=$(grep -E "$pattern" <<<"$names")
    name_it "$of_12"
    name_it "$of_13"
    stub stubs-12 "$of_12" "$functions"
    stub stubs "$of_13" "$functions"
done <<'LIBRARIES'
libcuda.so.1 libcuda.so.1 ^cu[A-Z]
libcudart.so.12 libcudart.so.13 ^(__)?cuda[A-Z]
libcublas.so.12 libcublas.so.13 ^cublas([A-KM-Z]|L[^t])
libcublasLt.so.12 libcublasLt.so.13 ^cublasLt
libcudnn.so.9 libcudnn.so.9 ^cudnn
libcurand.so.10 libcurand.so.10 ^curand
libnvrtc.so.12 libnvrtc.so.13 ^nvrtc
libnvidia-ml.so.1 libnvidia-ml.so.1 ^nvml
libnccl.so.2 libnccl.so.2 ^nccl
LIBRARIES
