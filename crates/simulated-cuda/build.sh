#!/usr/bin/env bash
# Builds the simulated CUDA libraries into a folder, for running (LD_LIBRARY_PATH), and into its folder `stubs` for linking (-L).
# Usage: build.sh OUT_DIR
set -euo pipefail
out=${1:?folder for the libraries}
crate=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)

cargo build --quiet --release --locked --manifest-path "$crate/Cargo.toml"
built=${CARGO_TARGET_DIR:-$crate/target}/release/libsimulated_cuda.so
if ! cmp -s "$built" "$out/libcuda.so.1"; then
    # Copied beside the old one and renamed, because a running program may have the old one mapped.
    cp "$built" "$out/libcuda.so.1.new"
    mv "$out/libcuda.so.1.new" "$out/libcuda.so.1"
fi
ln -sf libcuda.so.1 "$out/libcuda.so"

# The other libraries are empty: their functions come from libcuda, on which they depend. A program that is linked with those would need
# libcuda alone, and would not find cuBLAS on a machine with a GPU. So it is linked with stubs, each with the names of its library.
mkdir -p "$out/stubs"
names=$(nm -D --defined-only "$out/libcuda.so.1" | awk '{ print $3 }')
while read -r name pattern; do
    if [ ! -e "$out/$name" ]; then
        cc -shared -nostdlib -x c /dev/null -o "$out/$name" -Wl,-soname,"$name" -Wl,--no-as-needed -x none \
            "$out/libcuda.so.1" -Wl,-rpath,'$ORIGIN'
    fi
    ln -sf "$name" "$out/${name%.so.*}.so"
    grep -E "$pattern" <<<"$names" | sed 's/.*/void &(void) {}/' |
        cc -shared -nostdlib -fno-builtin -x c - -o "$out/stubs/$name.$$" -Wl,-soname,"$name"
    mv "$out/stubs/$name.$$" "$out/stubs/${name%.so.*}.so"
done <<'LIBRARIES'
libcuda.so.1 ^cu[A-Z]
libcudart.so.13 ^(__)?cuda[A-Z]
libcublas.so.13 ^cublas([A-KM-Z]|L[^t])
libcublasLt.so.13 ^cublasLt
libcurand.so.10 ^curand
libnvrtc.so.13 ^nvrtc
libnvidia-ml.so.1 ^nvml
libnccl.so.2 ^nccl
LIBRARIES
