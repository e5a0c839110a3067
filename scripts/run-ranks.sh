#!/usr/bin/env bash
# Runs the tests and the benchmarks of several ranks under `mpirun`, and prints each `distributed/...` figure once.
#
#     bash scripts/run-ranks.sh [--quick]
#
# With --quick ranks fail at every 7th point only, unless HEADROOM_POINTS says something else, and benchmarks are short.
# It needs Open MPI with its headers, and libclang. On Debian and Ubuntu: apt-get install libopenmpi-dev openmpi-bin libclang-dev
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
    '') quick=() ;;
    --quick) quick=(--quick); export HEADROOM_POINTS="${HEADROOM_POINTS:-7:0}" ;;
    *) echo "usage: bash scripts/run-ranks.sh [--quick]" >&2; exit 2 ;;
esac
command -v mpirun >/dev/null && command -v mpicc >/dev/null || {
    echo "Open MPI is missing: on Debian and Ubuntu, apt-get install libopenmpi-dev openmpi-bin libclang-dev" >&2
    exit 2
}
features=(--features image,metrics,mpi,nvtx,parquet --locked)
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# One test at a time: each starts several processes. They print their figures once for each rank.
cargo test "${features[@]}" --test ranks -- --nocapture --test-threads 1 2>&1 | tee -a "$output"
cargo bench "${features[@]}" --bench distributed -- "${quick[@]}" 2>&1 | tee -a "$output"
cargo bench "${features[@]}" --bench scale -- "${quick[@]}" 2>&1 | tee -a "$output"
echo
grep -o 'figure: distributed/.*' "$output" | sort -u
