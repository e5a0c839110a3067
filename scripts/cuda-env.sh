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
    local here libraries
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || return
    . "$here/crates/simulated-cuda/toolkit.sh"
    # With the machine's own libraries, its own compiler.
    if [ "${HEADROOM_CUDA:-simulated}" != real ] || ! command -v nvcc >/dev/null; then
        _simulated_cuda_toolkit "${XDG_CACHE_HOME:-$HOME/.cache}/candle-headroom/cuda-13.0" || return
    fi
    # Without a GPU to ask, kernels are compiled for Hopper.
    command -v nvidia-smi >/dev/null || export CUDA_COMPUTE_CAP="${CUDA_COMPUTE_CAP:-90}"

    if [ "${HEADROOM_CUDA:-simulated}" != real ]; then
        libraries="${CARGO_TARGET_DIR:-$here/target}/simulated-cuda"
        CARGO_TARGET_DIR="$libraries" bash "$here/crates/simulated-cuda/build.sh" "$libraries/lib" || return
        _simulated_cuda_libraries "$(cd "$libraries/lib" && pwd)"
    fi
}
_headroom_cuda_env
