#!/usr/bin/env bash
# Lists the names that a program with candle's CUDA backend needs from NVIDIA's libraries, by library: what its
# compiled dependencies leave undefined. Usage, after `cargo build --features cuda`:
#   symbols.sh TARGET_DIR/debug > symbols.txt
set -euo pipefail
built=${1:?folder with deps/ and build/}

shopt -s nullglob
inputs=("$built"/deps/lib{cudarc,candle_core,candle_nn,candle_kernels}*.rlib "$built"/build/candle-kernels-*/out/libmoe.a)
[ ${#inputs[@]} -gt 0 ] || { echo "nothing built below $built" >&2; exit 1; }
names=$(nm -u "${inputs[@]}" 2>/dev/null | awk '$1 == "U" && $2 ~ /^(cu[A-Z]|cublas|curand|nvrtc|cuda[A-Z]|__cuda)/ { print $2 }' | sort -u)

section() { # title, pattern that selects, pattern that excludes
    echo "# $1"
    grep -E "$2" <<<"$names" | grep -vE "$3" || true
}
echo "# Made by symbols.sh"
section libcuda '^cu[A-Z]' '^$'
section libcudart '^(cuda[A-Z]|__cuda)' '^$'
section libcublas '^cublas' '^cublasLt'
section libcublasLt '^cublasLt' '^$'
section libcurand '^curand' '^$'
section libnvrtc '^nvrtc' '^$'
