#!/usr/bin/env bash
# Changes the source at random places, one at a time, and says which changes no test notices.
#
#     scripts/try-mutants.sh [--sample N] [--seed S] [--list]
#
# --sample takes N mutants (default 100) of those of trainers (src/train, with what ranks agree on), batches, checkpoints, the optimizers'
# commit and nn's graph; --seed says which (default 28). The same seed takes the same ones of the same source. --list prints them and ends.
#
# Each is built and tested in a copy of the tree with the tests that should notice it: those beside the code, `promises`, `library`, `host`,
# `optimizer_allocations` and `nn`, and where there is Open MPI with libclang also `ranks`. That takes some minutes each on two cores, and
# more for the first. A mutant that a test runs into for too long counts as noticed; one that does not compile does not count.
#
# cargo-mutants is installed where it is missing, into a cache folder. It needs cargo and python3.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p}' "$0" >&2
  exit "$1"
}
number() {
  [[ ${2:-} =~ ^[0-9]{1,9}$ ]] || { echo "$1 needs a number, got ${2:-nothing}" >&2; exit 2; }
  echo "$((10#$2))"
}
sample=100 seed=28 list=''
while [ $# -gt 0 ]; do
  case $1 in
    --sample) sample=$(number "$@"); shift 2 ;;
    --seed) seed=$(number "$@"); shift 2 ;;
    --list) list=1; shift ;;
    -h | --help) usage 0 ;;
    *) echo "unknown option $1" >&2; usage 2 ;;
  esac
done
[ "$sample" -gt 0 ] || { echo "--sample needs a number above 0" >&2; exit 2; }

version=27.1.0
cache="${XDG_CACHE_HOME:-$HOME/.cache}/candle-headroom"
export PATH="$cache/tools/bin:$PATH"
if ! command -v cargo-mutants >/dev/null; then
  build=$(mktemp -d)
  trap 'rm -rf "$build"' EXIT
  CARGO_TARGET_DIR="$build" cargo install --locked --quiet --root "$cache/tools" "cargo-mutants@$version"
fi

packages=(-p candle-headroom -p candle-headroom-nn)
places=(-f 'src/train/**' -f 'src/batch/**' -f 'src/checkpoint/**' -f 'src/optim/fused/**' -f 'src/optim/commit.rs' -f 'crates/nn/src/graph/**')
# `Debug` is for people, and the tests of a module are none of its code.
without=(-e '**/tests.rs' -e '**/tests/**' -E 'impl (std::|core::)?(fmt::)?Debug for')
results="${CARGO_TARGET_DIR:-$cache/target}/mutants"
mkdir -p "$results"

cargo mutants "${packages[@]}" "${places[@]}" "${without[@]}" --colors never --list >"$results/all.txt"
python3 - "$results/all.txt" "$sample" "$seed" >"$results/sample.txt" <<'PYTHON'
import random, sys
path, sample, seed = sys.argv[1:]
names = sorted(line.rstrip("\n") for line in open(path) if line.strip())
print(*sorted(random.Random(int(seed)).sample(names, min(int(sample), len(names)))), sep="\n")
PYTHON
echo "$(wc -l <"$results/sample.txt") of $(wc -l <"$results/all.txt") mutants, seed $seed"
if [ -n "$list" ]; then
  cat "$results/sample.txt"
  exit
fi

# Whole names, in the syntax of the crate `regex`.
mapfile -t chosen < <(python3 - "$results/sample.txt" <<'PYTHON'
import sys
for name in open(sys.argv[1]):
    plain = "".join(c if c.isalnum() or c in " _:,;/<>=" else "\\x{%x}" % ord(c) for c in name.rstrip("\n"))
    print("--re=^" + plain + "$")
PYTHON
)
features=image,layers,metrics,parquet
tests=(--lib --test promises --test library --test host --test optimizer_allocations --test nn)
if command -v mpirun >/dev/null && command -v mpicc >/dev/null && compgen -G "${LIBCLANG_PATH:-/usr/lib/llvm-*/lib}/libclang*.so*" >/dev/null; then
  features+=,mpi
  tests+=(--test ranks)
  # In containers this runs as root, which `mpirun` refuses otherwise.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
else
  echo "without Open MPI and libclang: the tests of ranks are left out"
fi

status=0
CARGO_TARGET_DIR="$results/target" cargo mutants "${packages[@]}" "${places[@]}" "${without[@]}" "${chosen[@]}" \
  --test-package candle-headroom --test-package candle-headroom-nn --features "$features" \
  --timeout-multiplier 3 --minimum-test-timeout 300 --colors never --output "$results" -- --locked "${tests[@]}" || status=$?
# 2: some were missed, 3: some took too long.
case $status in
  0 | 2 | 3) ;;
  4) echo "the tests fail without a mutant" >&2; exit 1 ;;
  *) echo "cargo mutants ended with status $status" >&2; exit 1 ;;
esac
count() { wc -l <"$results/mutants.out/$1.txt"; }
missed=$(count missed)
tested=$((missed + $(count caught) + $(count timeout)))
echo "figure: tests/mutants_missed = $missed of $tested"
[ "$missed" = 0 ] || { echo "missed:"; cat "$results/mutants.out/missed.txt"; }
