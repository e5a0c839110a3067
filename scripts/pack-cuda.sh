#!/usr/bin/env bash
# Packs the test programs, the benchmarks, `train_text`, `headroom` and the simulated driver, built in release with `--features cuda,layers`, into one archive with a
# runner: a machine with a GPU and CUDA's libraries, but without Rust, unpacks it and runs everything.
#
# Usage: scripts/pack-cuda.sh [ARCHIVE]      default: target/cuda-suite.tar.xz
#
# Kernels are compiled for Hopper (compute capability 9.0) and run on no other GPU. For another one give its own, which compiles
# candle's kernels anew: CUDA_COMPUTE_CAP=80 scripts/pack-cuda.sh
set -euo pipefail
cd "$(dirname "$0")/.."
archive=${1:-target/cuda-suite.tar.xz}
. scripts/cuda-env.sh

suite=$(mktemp -d)
trap 'rm -rf "$suite"' EXIT
mkdir -p "$suite/cuda-suite/programs" "$(dirname "$archive")"

# One JSON line for each thing built; the last executable of a name is the one of this build.
build() { cargo "$@" --locked --features cuda,layers --message-format=json-render-diagnostics; }
{
    build test --release --no-run --test cuda
    build bench --no-run --bench cuda
    build build --release --example train_text --bin headroom
} | python3 -c '
import json, sys
built = {}
for line in sys.stdin:
    message = json.loads(line)
    if message.get("reason") == "compiler-artifact" and message.get("executable"):
        target = message["target"]
        if target["kind"] != ["custom-build"]:
            kind = "bench-" if "bench" in target["kind"] else "test-" if "test" in target["kind"] else ""
            built[kind + target["name"]] = message["executable"]
for name, path in built.items():
    print(name, path)
' | while read -r name path; do
    strip -o "$suite/cuda-suite/programs/$name" "$path"
done

cp scripts/run-cuda-suite.sh "$suite/cuda-suite/run"
# What predicts the peaks that the GPU then has.
libraries=${CARGO_TARGET_DIR:-target}/simulated-cuda/lib
cp -a "$libraries" "$suite/cuda-suite/simulated-cuda"
rm -rf "$suite/cuda-suite/simulated-cuda/"stubs*
strip "$suite/cuda-suite/simulated-cuda/libcuda.so.1"
mkdir "$suite/cuda-suite/calls"
bash scripts/call-counter.sh "$suite/cuda-suite/calls/libcuda.so.1"
ln -s libcuda.so.1 "$suite/cuda-suite/calls/libcuda.so" # cudarc asks for this name first
echo "${CUDA_COMPUTE_CAP:-that of the GPU where this was packed}" >"$suite/cuda-suite/compute-capability"
cp README.md docs/how-to/cuda-out-of-memory.md docs/reference/promises.md "$suite/cuda-suite/" # text to train on
tar -C "$suite" -cf - cuda-suite | xz -T0 -6 >"$archive"
ls -l "$archive"
test "$(stat -c %s "$archive")" -lt $((60 << 20)) || { echo "the archive is over 60 MiB" >&2; exit 1; }
