#!/usr/bin/env bash
# Runs candle-transformers' own models on small configurations (tests/models) with candle_nn, with plain compositions of candle's
# differentiable operations, and with candle-headroom-nn, and prints how many Vars receive a gradient, whether gradients agree, bytes
# for each sample, and how many losses a trainer takes for ones that depend on how a batch is cut.
#
#     scripts/try-models.sh [--quick] [--models a,b,c] [--list | --cuda]
#
# --quick leaves out candle_nn, and the few models that take seconds; --list prints the models' names. --cuda takes two steps
# of each on the simulated driver instead (`. scripts/cuda-env.sh`), and compares the allocations of executing and of allocating only. Sources are candle-transformers'
# as published, from cargo's registry cache; the two copies that depend on another candle-nn are made by scripts/trainable-copy.sh,
# under the target folder. It fails if a model is not reached with right gradients, unless tests/models says why not, and if it is
# although tests/models says why not, or if its loss is refused. It needs cargo and python3.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
root=$PWD
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
# Cargo runs in several folders.
[[ $CARGO_TARGET_DIR == /* ]] || CARGO_TARGET_DIR=$caller/$CARGO_TARGET_DIR
work=$CARGO_TARGET_DIR/models
mkdir -p "$work"

quick='' chosen='' list='' cuda=''
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=1 ;;
        --list) list=1 ;;
        --cuda) cuda=1 ;;
        --models) chosen=${2:?--models needs names, as a,b,c} && shift ;;
        *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" && exit 1 ;;
    esac
    shift
done

# The manifest of tests/models with another candle-nn: VARIANT PACKAGE PATH.
manifest() {
    local folder=$work/$1 package=$2 path=$3 said
    mkdir -p "$folder"
    copy() {
        (cd tests/models && "$root/scripts/trainable-copy.sh" --package "$package" --path "$path" \
            candle-transformers "$folder/candle-transformers")
    }
    # One of another version, of another checkout, or of another script is in the way.
    if ! said=$(copy 2>/dev/null) || [[ $said == *"were changed since"* ]]; then
        rm -rf "$folder/candle-transformers" && copy >/dev/null
    fi
    sed -e "s|^name = \"models\"|name = \"models-$1\"|" \
        -e "s|^candle-nn = .*|candle-nn = { package = \"$package\", path = \"$path\" }|" \
        -e "s|^path = \"src/main.rs\"|path = \"$root/tests/models/src/main.rs\"|" \
        -e "s|^path = \"../../examples/|path = \"$root/examples/|" \
        -e "s|^models = |models-$1 = |" tests/models/Cargo.toml >"$folder/Cargo.toml.new"
    # With its trainer.
    [ "$1" != ours ] || sed -i "s|^candle-nn = .*|&\ncandle-headroom = { path = \"$root\" }|" "$folder/Cargo.toml.new"
    # As in candle-headroom's own manifest.
    [ "$1" != ours ] || sed -i "/^models-ours = /r "<(grep -E '^candle-headroom(-nn)? = \{ opt-level' Cargo.toml) "$folder/Cargo.toml.new"
    printf '\n[patch.crates-io]\ncandle-transformers = { path = "candle-transformers" }\n' >>"$folder/Cargo.toml.new"
    cmp -s "$folder/Cargo.toml.new" "$folder/Cargo.toml" || mv "$folder/Cargo.toml.new" "$folder/Cargo.toml"
    # The versions of both lock files; cargo drops what the variant does not need.
    python3 - tests/models/Cargo.lock Cargo.lock >"$folder/Cargo.lock.new" <<'PYTHON'
import re, sys
packages = {}
for name in sys.argv[1:]:
    head, *entries = open(name).read().split("[[package]]\n")
    for entry in entries:
        if "\nsource = " in entry:
            packages.setdefault(re.match(r'name = (".*")\nversion = (".*")', entry).groups(), entry.rstrip() + "\n")
print(head + "\n".join("[[package]]\n" + packages[key] for key in sorted(packages)), end="")
PYTHON
    if [ ! -f "$folder/Cargo.lock" ] || [ Cargo.lock -nt "$folder/Cargo.lock" ]; then mv "$folder/Cargo.lock.new" "$folder/Cargo.lock"; fi
}

build() { # VARIANT MANIFEST [OPTION]
    local started=$SECONDS
    cargo build --quiet --manifest-path "$2" "${@:3}"
    echo "$1: built in $((SECONDS - started)) s" >&2
}
run() { # VARIANT PROGRAM
    local variant=$1
    rm -rf "${work:?}/$variant/results" && mkdir -p "$work/$variant/results"
    # One thread: the same sums and the same memory in every run.
    RAYON_NUM_THREADS=1 RUST_BACKTRACE=0 "$CARGO_TARGET_DIR/debug/$2" run "$work/$variant/results" "${models[@]}"
}
choose() { # PROGRAM
    local program=$CARGO_TARGET_DIR/debug/$1
    if [ -n "$chosen" ]; then tr , '\n' <<<"$chosen"; elif [ -n "$quick" ]; then "$program" quick; else "$program" list; fi
}

if [ -n "$cuda" ]; then
    manifest ours candle-headroom-nn "$root/crates/nn"
    build ours "$work/ours/Cargo.toml" --features cuda
    mapfile -t models < <(choose models-ours)
    arguments=()
    for model in "${models[@]}"; do arguments+=(-- "$CARGO_TARGET_DIR/debug/models-ours" update "$model"); done
    # These read back what a kernel has computed, and size tensors by it: docs/reference/dry-runs.md.
    MODELS_DEVICE=cuda python3 scripts/compare-modes.py --by-values mixtral,qwen2_moe,deepseek2,clip "${arguments[@]}"
    exit
fi
manifest plain plain-nn "$root/tests/models/plain-nn"
build plain "$work/plain/Cargo.toml"
if [ -n "$list" ]; then "$CARGO_TARGET_DIR/debug/models-plain" list && exit; fi
mapfile -t models < <(choose models-plain)
run plain models-plain
# The reference's `Conv1d` is a sum over positions, which holds more than candle_nn's: bytes are those with the latter.
PLAIN_CONV1D=candle RAYON_NUM_THREADS=1 "$CARGO_TARGET_DIR/debug/models-plain" bytes "$work/plain/results" "${models[@]}"
original=-
if [ -z "$quick" ]; then
    build original tests/models/Cargo.toml --locked
    run original models
    original=$work/original/results
fi
manifest ours candle-headroom-nn "$root/crates/nn"
build ours "$work/ours/Cargo.toml" --features trainer
run ours models-ours
# Adapters by one call: models whose linear layers all lead to their output.
RAYON_NUM_THREADS=1 "$CARGO_TARGET_DIR/debug/models-ours" lora llama mistral qwen2 qwen3 gemma2 phi3 bert
# An example: it fine-tunes a small BERT that it makes.
"$CARGO_TARGET_DIR/debug/bert" | tail -n 1
"$CARGO_TARGET_DIR/debug/models-plain" table "$original" "$work/plain/results" "$work/ours/results" "${models[@]}"
