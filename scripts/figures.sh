#!/usr/bin/env bash
# Prints the figures of a part of the project, each on a line of its own: `figure: NAME = NUMBER UNIT`.
#
#     scripts/figures.sh right [--quick]    gradients, cuts, ranks and data: what must not be wrong silently
#     scripts/figures.sh house [--quick]    the size of the sources, and what a build costs
#     scripts/figures.sh first-hour [--quick]  what a newcomer reads
#     scripts/figures.sh gpu                what steps ask of a GPU: launches, calls, waits; on the simulated driver; builds for CUDA
#     scripts/figures.sh dry-run            dry runs beside execution and formulas, on the simulated driver; builds for CUDA
#     scripts/figures.sh eight-billion      a base in few bits, long contexts: what they take and change; on the simulated driver; builds for CUDA
#     scripts/figures.sh at-size [--quick]  data that does not lie in memory, many ranks, every point at which one can fail; builds for CUDA
#
# With --quick the benchmarks are left out, which .ci/run runs by itself, all builds but the small ones, and what rustdoc has to be built
# for. It needs cargo, and Open MPI with libclang for the ranks. The figures of CUDA come from the same tests of the binary `cuda`:
# `cargo test --features cuda --test cuda -- gradients:: --nocapture`.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:-}
is_quick=$([ "${2:-}" = --quick ] && echo yes || true)
features=(--features "${HEADROOM_FEATURES:-image,layers,metrics,mpi,nvtx,parquet}" --locked)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# As .ci/run builds benchmarks, so that dependencies are not built once more.
as_release=(--profile dev --config profile.dev.incremental=false)
for option in opt-level=3 debug-assertions=false overflow-checks=false codegen-units=16; do
    for package in candle-headroom candle-headroom-environment candle-headroom-nn; do
        as_release+=(--config "profile.dev.package.$package.$option")
    done
done

# Runs the tests of a binary whose names contain one of these, and prints their figures. A failing test ends the script, after the
# figures; so does a binary without one.
tests() {
    local binary=$1 output
    shift
    output=$(mktemp)
    local failed=0
    cargo test --quiet "${features[@]}" --test "$binary" -- --nocapture "$@" >"$output" 2>&1 || failed=1
    grep -oE '(figure|silent-case): .*' "$output" | sort -u || failed=1
    [ "$failed" = 0 ] || cat "$output" >&2
    rm -f "$output"
    return "$failed"
}

case $name in
    right)
        tests nn gradients:: slopes:: cut::
        tests library check_cut::
        # The tests go on after a case that is silent, and `errexit` does not hold where a status is asked for.
        # Each on 2 and on 3 ranks, but those in which ranks have to train `together`: nothing of them could be silent.
        written=$(cat tests/ranks/silent/*.rs | grep -c "^#\[test\]")
        silent_cases=$((2 * (written - $(cat tests/ranks/silent/*.rs | grep -c " together("))))
        failed=0
        cases=$(tests ranks silent:: --test-threads 1) || failed=1
        echo "$cases"
        awk -F ' = ' -v least="$silent_cases" '/^silent-case/ { cases++; silent += $2 } END {
            printf "figure: ranks/silent_cases = %d cases\nfigure: ranks/silent = %d cases\n", cases, silent
            if (cases < least) { printf "%d cases of ranks, expected %d\n", cases, least >"/dev/stderr"; exit 1 } }' <<<"$cases"
        [ "$failed" = 0 ] || exit 1
        tests promises exact_resume
        [ -n "$is_quick" ] ||
            cargo bench --quiet "${as_release[@]}" "${features[@]}" --bench data -- --quick tokens | grep -o 'figure: .*'
        bash scripts/count-api.sh ;;
    gpu)
        . scripts/cuda-env.sh
        output=$(mktemp)
        failed=0
        cargo bench --quiet --features cuda,layers --locked --bench cuda -- --counts >"$output" || failed=1
        grep -E '^(figure|risen|new|fallen|gone): ' "$output" || failed=1
        python3 scripts/check-spills.py "${CARGO_TARGET_DIR:-target}/release" || failed=1
        bash scripts/count-with-patch.sh | grep '^figure: ' || failed=1
        cargo test --release --features cuda,layers --locked --test cuda -- --nocapture large:: exhaustion::at_every_call | grep '^figure: ' || failed=1
        rm -f "$output"
        [ "$failed" = 0 ] || exit 1 ;;
    eight-billion)
        cargo test --quiet --locked -p headroom-finetune --test finetune-quantized -- --nocapture | grep '^figure: '
        tests_of_nn=$(cargo test --quiet --locked -p candle-headroom-nn --test nn -- --nocapture frozen::)
        grep '^figure: ' <<<"$tests_of_nn"
        . scripts/cuda-env.sh
        HEADROOM_POINTS=${HEADROOM_POINTS:-7:3} cargo test --features cuda,layers --locked --test cuda -- --nocapture offload:: frozen:: | grep '^figure: '
        cargo build --locked -p headroom --features dry-run
        cargo build --release --locked -p headroom-finetune --features cuda
        target=${CARGO_TARGET_DIR:-target}
        python3 scripts/eight-billion.py "$target/debug/headroom" "$target/release/finetune" --table ;;
    at-size)
        HEADROOM_HISTORIES=${HEADROOM_HISTORIES:-$([ -n "$is_quick" ] && echo 300 || echo 10000)} tests library data::interruptions::each_sample
        cargo bench --quiet "${as_release[@]}" "${features[@]}" --bench data -- ${is_quick:+--quick} blocks index | grep -o 'figure: .*'
        cargo bench --quiet "${as_release[@]}" "${features[@]}" --features object-store --bench data -- ${is_quick:+--quick} objects |
            grep -o 'figure: .*'
        tests ranks sizes::
        cargo bench --quiet "${as_release[@]}" "${features[@]}" --bench scale -- --quick | grep -o 'figure: .*'
        bash scripts/count-api.sh | grep code_lines
        export HEADROOM_POINTS=${HEADROOM_POINTS:-$([ -n "$is_quick" ] && echo 7:3 || echo all)}
        points=$(mktemp)
        failed=0
        tests ranks every_point:: >"$points" || failed=1
        . scripts/cuda-env.sh
        features=(--features cuda,layers --locked)
        tests cuda every_point:: >>"$points" || failed=1
        cat "$points"
        # Both together.
        awk -F '[ =]+' '/ranks\// { sub(/_(mpi|nccl)$/, "", $2); sums[$2] += $3 } END {
            for (name in sums) printf "figure: %s = %d points\n", name, sums[name] }' "$points" | sort
        rm -f "$points"
        [ "$failed" = 0 ] || exit 1 ;;
    house)
        bash scripts/count-api.sh
        find crates/finetune/src -name "*.rs" -print0 | xargs -0 cat |
            awk '!/^[[:space:]]*($|\/\/)/ { lines++ } END { printf "figure: finetune/code_lines = %d lines\n", lines }'
        [ -n "$is_quick" ] ||
            cargo bench --quiet "${as_release[@]}" "${features[@]}" --bench memory -- --quick | grep -o 'figure: memory/step_kept.*'
        bash scripts/measure-build.sh ${is_quick:+--quick} 2>/dev/null ;;
    first-hour)
        tests programs pages::
        printf 'figure: docs/lines = %d lines\n' "$(git ls-files 'docs/*.md' | xargs cat | wc -l)"
        [ -z "$is_quick" ] || exit 0
        # rustdoc counts examples by an unstable option, which a stable one takes so.
        counting=$(mktemp -d)
        trap 'rm -rf "$counting"' EXIT
        printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n' >"$counting/rustdoc"
        chmod +x "$counting/rustdoc"
        for package in candle-headroom candle-headroom-nn candle-headroom-environment; do
            RUSTDOC="$counting/rustdoc" cargo rustdoc --quiet -p "$package" --lib "${features[@]:2}" -- \
                -Z unstable-options --show-coverage --output-format json
        done | python3 -c '
import json, sys
files = [file for line in sys.stdin for file in json.loads(line).values()]
total, examples = (sum(file[name] for file in files) for name in ("total_examples", "with_examples"))
print(f"figure: docs/public_items_without_example = {100 * (1 - examples / total):.1f} % of {total}")' ;;
    *)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
        exit 2 ;;
esac
