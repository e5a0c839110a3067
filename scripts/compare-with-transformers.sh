#!/usr/bin/env bash
# Compares the model of the program `finetune` with transformers and PEFT: small random models of each family, by logits, gradients,
# and folders and adapters in both directions; then memory for each sample and time for a step of a larger one, on the CPU.
#
#     scripts/compare-with-transformers.sh [--quick | --measure] [--samples N] [--rounds N] [--threads N] [--golden FOLDER]
#
# --quick compares the families only, --measure measures only, --golden only writes the files of crates/finetune/tests/data. Times are the median
# of --rounds steps (9) of --samples samples (4); both sides have --threads threads (2). It installs torch,
# transformers, peft and bitsandbytes from PyPI into a virtual environment below the target folder: 3 GB, since torch's wheel for the CPU alone is
# not on PyPI. It needs cargo, python3 with venv, and Linux. Other programs that run meanwhile spoil the times.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
root=$PWD
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
# Python runs in another folder.
[[ $CARGO_TARGET_DIR == /* ]] || CARGO_TARGET_DIR=$caller/$CARGO_TARGET_DIR
work=$CARGO_TARGET_DIR/transformers
mkdir -p "$work"

python=${COMPARE_PYTHON:-$work/venv/bin/python}
if ! "$python" -c 'import bitsandbytes, gguf, peft, torch, transformers' 2>/dev/null; then
    python3 -m venv "$work/venv"
    pip() { "$work/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
    # The compilers and collectives that torch names as dependencies are not needed on the CPU; the libraries that it is linked with are.
    pip --no-deps torch==2.15.0 nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13==9.26.0.51 \
        nvidia-cufft nvidia-cufile nvidia-cusparse nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.30.7 nvidia-nvjitlink \
        nvidia-nvshmem-cu13==3.7.2
    pip filelock fsspec gguf jinja2 networkx numpy psutil safetensors setuptools 'sympy>=1.13.3' transformers==5.23.0 \
        'typing-extensions>=4.13'
    pip --no-deps accelerate bitsandbytes==0.50.2 peft==0.21.2
    python=$work/venv/bin/python
fi

# This crate's own code as in a release, and the dependencies' one build, as in .ci/run.
as_release=(--profile dev --config profile.dev.incremental=false)
for option in opt-level=3 debug-assertions=false overflow-checks=false codegen-units=16; do
    for package in candle-headroom candle-headroom-nn headroom-finetune; do
        as_release+=(--config "profile.dev.package.$package.$option")
    done
done
program=$(cargo bench "${as_release[@]}" --features "${COMPARE_FEATURES:-parquet}" --locked -p headroom-finetune --bench transformers --no-run --message-format=json |
    python3 -c '
import json, sys
built = [json.loads(line) for line in sys.stdin]
print(next(b["executable"] for b in built if b.get("target", {}).get("name") == "transformers" and b.get("executable")))')
cd "$caller"
"$python" "$root/crates/finetune/benches/transformers/compare.py" --bench "$program" --work "$work" "$@"
