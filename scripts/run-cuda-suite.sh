#!/usr/bin/env bash
# Runs the packed suite on this machine's GPU: `bash run [RESULTS]`. Each program's output goes to RESULTS (default: results), its
# figures to the terminal. CUDA's libraries have to be on LD_LIBRARY_PATH; PyTorch's are found by themselves.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:-$here/results}
mkdir -p "$results"
results=$(cd "$results" && pwd)
cd "$here"

# NVIDIA's libraries as PyTorch's wheels bring them, and the toolkit's.
wheels=$(python3 -c 'import nvidia, os; print("\n".join(os.path.join(p, d, "lib") for p in nvidia.__path__ for d in sorted(os.listdir(p))))' 2>/dev/null || true)
for folder in $wheels /usr/local/cuda/lib64; do
    [ -d "$folder" ] && LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
done
export LD_LIBRARY_PATH HEADROOM_CUDA="${HEADROOM_CUDA:-real}"

{
    date -u +%F
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
    echo "kernels for compute capability $(cat compute-capability)"
} | tee "$results/machine.txt"

status=0
run() {
    local name=$1
    shift
    echo "== $name"
    "$@" >"$results/$name.txt" 2>&1
    local code=$?
    grep -E '^(figure:|test result|skipped)' "$results/$name.txt" || true
    if [ $code -ne 0 ]; then
        echo "failed with status $code; the end of its output:"
        tail -n 20 "$results/$name.txt"
        status=1
    fi
}
run doctor programs/headroom doctor --redact
run test-cuda programs/test-cuda --nocapture
run bench-cuda programs/bench-cuda
# The simulated driver takes seconds for a step.
[ "$HEADROOM_CUDA" = real ] && steps=45 || steps=2
run train_text programs/train_text --device cuda:0 --budget 2GiB --steps $steps README.md cuda-out-of-memory.md promises.md
exit $status
