#!/usr/bin/env bash
# Builds the simulated CUDA libraries into a folder, for linking (-L) and for running (LD_LIBRARY_PATH).
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

# The other libraries are empty: their functions come from libcuda, on which they depend.
for name in libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcurand.so.10 libnvrtc.so.13 libnvidia-ml.so.1 libnccl.so.2; do
    if [ ! -e "$out/$name" ]; then
        cc -shared -nostdlib -x c /dev/null -o "$out/$name" -Wl,-soname,"$name" -Wl,--no-as-needed -x none \
            "$out/libcuda.so.1" -Wl,-rpath,'$ORIGIN'
    fi
    ln -sf "$name" "$out/${name%.so.*}.so"
done
