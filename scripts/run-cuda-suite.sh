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

rm -rf "$results/tests" "$results/parts.jsonl"
mkdir -p "$results/tests"
touch "$results/tests/"{all,again,passed}
{
    date -u +%F
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
    echo "kernels for compute capability $(cat compute-capability)"
} | tee "$results/machine.txt"

status=0
# `run NAME SECONDS COMMAND...`: a program that hangs does not keep the others from running.
run() {
    local name=$1 seconds=$2
    shift 2
    echo "== $name"
    local began=$SECONDS
    timeout -k 10 "$seconds" "$@" >"$results/$name.txt" 2>&1
    local code=$?
    grep -E '^(figure:|test result|skipped)' "$results/$name.txt" || true
    echo "{\"part\": \"$name\", \"status\": $code, \"seconds\": $((SECONDS - began))}" >>"$results/parts.jsonl"
    if [ $code -ne 0 ]; then
        echo "failed with status $code; the end of its output:"
        tail -n 20 "$results/$name.txt"
        status=1
    fi
}

# Each test in a process of its own, since a fault that sticks to a device would fail all that follow: some at a time, and those that
# fail once more by themselves, where no other takes memory of the same GPU.
one_test() {
    local name=$1 code
    timeout --foreground -k 10 90 programs/test-cuda --nocapture --exact "$name" >"$results/tests/${name//:/_}.txt" 2>&1
    code=$?
    if [ $code -eq 0 ]; then echo "$name" >>"$results/tests/passed"; else echo "$name" >>"$results/tests/$2"; fi
}
run_tests() {
    programs/test-cuda --list | sed -n 's/: test$//p' >"$results/tests/all"
    xargs -P "${AT_A_TIME:-4}" -I{} bash -c 'one_test {} again' <"$results/tests/all"
    while read -r name; do one_test "$name" failed; done <"$results/tests/again"
}
# What has run when it is asked for.
tests_passed() {
    local skipped
    skipped=$(grep -l '^skipped' "$results"/tests/*.txt | wc -l)
    echo "test result: $(wc -l <"$results/tests/passed") of $(wc -l <"$results/tests/all") passed; $skipped of them were skipped, as their output says"
    grep -vxF -f "$results/tests/passed" "$results/tests/all" | while read -r name; do
        echo "not passed: $name"
        grep -v '^$' "$results/tests/${name//:/_}.txt" 2>/dev/null | tail -n 12
    done
    [ -s "$results/tests/all" ] && cmp -s <(sort "$results/tests/passed") <(sort "$results/tests/all")
}
export -f run_tests one_test && export results

run doctor 60 programs/headroom doctor --redact
run test-cuda "${TEST_SECONDS:-300}" bash -c run_tests
tests_passed | tee "$results/tests.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || status=1
# The simulated driver takes seconds for a step.
[ "$HEADROOM_CUDA" = real ] && steps=45 || steps=2
run train_text 60 programs/train_text --device cuda:0 --budget 2GiB --steps $steps README.md cuda-out-of-memory.md promises.md
run bench-cuda "${BENCH_SECONDS:-240}" programs/bench-cuda ${BENCH_OPTIONS:-}
# The same peaks on the simulated driver, without computing, beside those that the benchmark has just measured: in MiB, of tensors.
peaks() {
    sed -n 's#^\(figure: gpu/\|simulated driver, no figure: \)\([a-z_0-9]*_peak\) = \([0-9.]*\) MiB.*#\2 \3#p'
}
predict() {
    for layer in attention_4096 swiglu linear_cross_entropy llama_layer language_model; do
        env LD_LIBRARY_PATH="$here/simulated-cuda" SIMULATED_CUDA_MODE=allocate SIMULATED_CUDA_MEMORY=$((128 << 30)) \
            programs/bench-cuda --quick --only "$layer" | peaks
    done >"$results/predicted.txt"
    peaks <"$results/bench-cuda.txt" >"$results/measured.txt"
    awk -v figure="$([ "$HEADROOM_CUDA" = real ] && echo "figure: dry_run/" || echo "simulated driver, no figure: ")" '
        NR == FNR { measured[$1] = $2; next }
        measured[$1] > 0 {
            off = 100 * ($2 / measured[$1] - 1); size = off < 0 ? -off : off; count++
            printf "%s: predicted %s MiB, measured %s (%+.3f %%)\n", $1, $2, measured[$1], off
            if (size > worst) worst = size
        }
        END {
            if (!count) exit 1
            printf "%speaks_compared_with_gpu = %d peaks\n%speak_error_of_gpu = %.3f %%\n", figure, count, figure, worst
        }' "$results/measured.txt" "$results/predicted.txt"
}
export -f predict peaks && export here
run predicted 120 bash -c predict
# What layers ask of this machine's driver and of the simulated one, counted in front of each (scripts/call-counter.sh).
driver() {
    local folder
    [ "$HEADROOM_CUDA" = real ] || { echo "$here/simulated-cuda/libcuda.so.1"; return; }
    for folder in ${LD_LIBRARY_PATH//:/ } $(ldconfig -p 2>/dev/null | sed -n 's#.*libcuda\.so\.1 .*x86-64.* => \(.*\)/libcuda.so.1$#\1#p') /usr/lib64; do
        [ -e "$folder/libcuda.so.1" ] && { echo "$folder/libcuda.so.1"; return; }
    done
    echo "no libcuda.so.1 found" >&2
    return 1
}
count_calls() {
    local layer real simulated="$here/simulated-cuda"
    real=$(driver) || return
    for layer in attention_4096 swiglu linear_cross_entropy llama_layer language_model; do
        env LD_LIBRARY_PATH="$here/calls:$(dirname "$real"):$LD_LIBRARY_PATH" DRIVER="$real" DRIVER_CALLS="$results/calls" \
            programs/bench-cuda --once --only "$layer" || return
        sed "s/^/$layer here /" "$results/calls"
        env LD_LIBRARY_PATH="$here/calls:$simulated" DRIVER="$simulated/libcuda.so.1" DRIVER_CALLS="$results/calls" \
            SIMULATED_CUDA_MODE=allocate SIMULATED_CUDA_MEMORY=$((128 << 30)) programs/bench-cuda --once --only "$layer" || return
        sed "s/^/$layer simulated /" "$results/calls"
    done >"$results/calls.txt"
    # What a step does, without what asks for properties, contexts and modules.
    awk -v figure="$([ "$HEADROOM_CUDA" = real ] && echo "figure: cuda/" || echo "simulated driver, no figure: ")" '
        $3 ~ /^cu(Launch|MemAlloc|MemFree|Memcpy|Memset|Event|StreamSynchronize|StreamWait|CtxSynchronize)/ {
            calls[$1 " " $3] = 1; number[$2 " " $1 " " $3] = $4
        }
        END {
            for (call in calls) {
                count++; one = number["here " call] + 0; other = number["simulated " call] + 0
                if (one != other) { differ++; print call ": " one " here, " other " on the simulated driver" }
            }
            if (!count) exit 1
            printf "%scalls_compared_with_gpu = %d functions of layers\n%scalls_differing_on_gpu = %d functions of layers\n", figure, count, figure, differ
        }' "$results/calls.txt"
}
export -f driver count_calls
run calls 180 bash -c count_calls
# What each kernel takes, where NVIDIA's profiler is installed and may read counters.
if [ "$HEADROOM_CUDA" = real ] && command -v ncu >/dev/null; then
    before=$status
    for layer in attention_4096 linear_cross_entropy llama_layer language_model; do
        run "kernels-$layer" 60 ncu --metrics gpu__time_duration.sum --csv --clock-control none programs/bench-cuda --once --only "$layer"
    done
    status=$before
fi
exit $status
