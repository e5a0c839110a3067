# Gets a shell ready to build, link and test with `--features cuda` on a machine without a GPU and without CUDA:
#
#     . scripts/cuda-env.sh
#     cargo test --features cuda --test cuda
#
# Where there is no `nvcc`, NVIDIA's compiler comes from PyPI (489 MB, once) into a cache folder. Linking and running use the
# simulated driver of crates/simulated-cuda, unless HEADROOM_CUDA=real asks for the machine's own libraries. It needs bash, cargo, a
# C compiler, nm, and python3 with pip where the compiler has to be fetched.

# Sourced, so without `set -e`: a function keeps what fails from ending the caller's shell.
_headroom_cuda_env() {
    local here cache toolkit part libraries
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || return
    cache="${XDG_CACHE_HOME:-$HOME/.cache}/candle-headroom"

    # The simulated libraries are those of CUDA 13: with another toolkit programs would ask for others.
    if ! command -v nvcc >/dev/null ||
        { [ "${HEADROOM_CUDA:-simulated}" != real ] && ! nvcc --version | grep -q 'release 13'; }; then
        toolkit="$cache/cuda-13.0"
        if [ ! -x "$toolkit/nvidia/cu13/bin/nvcc" ]; then
            echo "cuda-env: fetching NVIDIA's compiler from PyPI into $toolkit" >&2
            mkdir -p "$cache" && part=$(mktemp -d "$toolkit.XXXXXX") || return
            python3 -m pip install --quiet --no-deps --disable-pip-version-check --target "$part" \
                nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 \
                nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-nvrtc==13.0.88 || return
            # Whole or not at all: a run that was cut off must not pass for an installed compiler.
            rm -rf "$toolkit" && mv "$part" "$toolkit" || return
        fi
        export CUDA_HOME="$toolkit/nvidia/cu13"
        export CUDA_PATH="$CUDA_HOME" CUDA_ROOT="$CUDA_HOME"
        export PATH="$CUDA_HOME/bin:$PATH"
    fi
    # Without a GPU to ask, kernels are compiled for Hopper.
    command -v nvidia-smi >/dev/null || export CUDA_COMPUTE_CAP="${CUDA_COMPUTE_CAP:-90}"

    if [ "${HEADROOM_CUDA:-simulated}" != real ]; then
        libraries="${CARGO_TARGET_DIR:-$here/target}/simulated-cuda"
        CARGO_TARGET_DIR="$libraries" bash "$here/crates/simulated-cuda/build.sh" "$libraries/lib" || return
        libraries=$(cd "$libraries/lib" && pwd)
        # By variables and not by rustflags: those would have candle's kernels built anew.
        export LIBRARY_PATH="$libraries/stubs${LIBRARY_PATH:+:$LIBRARY_PATH}"
        export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
}
_headroom_cuda_env
