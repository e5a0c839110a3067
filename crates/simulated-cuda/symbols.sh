#!/usr/bin/env bash
# Lists the names that programs may need from NVIDIA's libraries, by library: every function that cudarc declares for a version of CUDA 12
# or 13, or of cuDNN 9, whichever of them a program is built for. A program linked with code that nvcc compiled also calls functions of the
# CUDA runtime that cudarc doesn't declare: these are what real runtimes export. Usage, with cudarc's source and one runtime of each toolkit
# (`pip download nvidia-cuda-runtime-cu12`, `nvidia-cuda-runtime`):
#   symbols.sh ~/.cargo/registry/src/*/cudarc-0.19.10 libcudart.so.12 libcudart.so.13 > symbols.txt
set -euo pipefail
export LC_ALL=C
cudarc=${1:?folder with cudarc}
shift
[ $# -gt 0 ] || { echo "no libcudart.so given" >&2; exit 1; }

declared() { # module
    awk '
        /^ *#\[cfg\(/ { condition = $0 }
        /^ *pub (unsafe )?fn / && (condition !~ /feature = "/ || condition ~ /"(cuda-1[23]|cudnn-09)/) {
            match($0, /fn [A-Za-z0-9_]+/)
            print substr($0, RSTART + 3, RLENGTH - 3)
        }
        !/^ *#\[/ { condition = "" }
    ' "$cudarc/src/$1/sys/mod.rs"
}
section() { # title, pattern that selects
    echo "# $1"
    grep -E "$2" | sort -u
}
echo "# Made by symbols.sh"
declared driver | section libcuda '^cu[A-Z]'
{ declared runtime && nm -D --defined-only "$@" | awk '{ sub(/@.*/, "", $3); print $3 }'; } | section libcudart '^(__)?cuda[A-Z]'
declared cublas | section libcublas '^cublas'
declared cublaslt | section libcublasLt '^cublasLt'
declared curand | section libcurand '^curand'
declared nvrtc | section libnvrtc '^nvrtc'
declared cudnn | section libcudnn '^cudnn'
