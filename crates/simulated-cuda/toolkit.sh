# A function for scripts/cuda-env.sh and `headroom cuda-env`.

# Puts NVIDIA's compiler of CUDA 13.0 from PyPI (489 MB, once) into the folder $1 and on PATH, unless there is an nvcc of CUDA 12 or 13. It needs
# python3 with pip.
_simulated_cuda_toolkit() {
    local part
    if nvcc --version 2>/dev/null | grep -qE 'release 1[23]\.'; then
        return
    fi
    if [ ! -x "$1/nvidia/cu13/bin/nvcc" ]; then
        echo "cuda-env: fetching NVIDIA's compiler from PyPI into $1" >&2
        mkdir -p "$(dirname "$1")" && part=$(mktemp -d "$1.XXXXXX") || return
        python3 -m pip install --quiet --no-deps --disable-pip-version-check --target "$part" \
            nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 \
            nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-nvrtc==13.0.88 || return
        # Whole or not at all: a run that was cut off must not pass for an installed compiler.
        rm -rf "$1" && mv "$part" "$1" || return
    fi
    export CUDA_HOME="$1/nvidia/cu13"
    export CUDA_PATH="$CUDA_HOME" CUDA_ROOT="$CUDA_HOME"
    export PATH="$CUDA_HOME/bin:$PATH"
}

# Links and starts programs with the simulated libraries in the folder $1: those of the toolkit that nvcc is of.
_simulated_cuda_libraries() {
    local stubs=stubs
    if nvcc --version | grep -q 'release 12\.'; then
        stubs=stubs-12
    fi
    # By variables and not by rustflags: those would have candle's kernels built anew.
    export LIBRARY_PATH="$1/$stubs${LIBRARY_PATH:+:$LIBRARY_PATH}"
    export LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}
