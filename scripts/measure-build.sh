#!/usr/bin/env bash
# Measures what a build costs, each figure against candle-core's own in the same run, so that they hold on other machines. Everything is
# built from nothing in a temporary folder: about an hour on 2 cores. With --quick only the sizes and the small build are measured.
#
#     scripts/measure-build.sh [--quick]
#
# It needs cargo and python3; for build/llvm_lines it installs cargo-llvm-lines into a cache folder.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
is_quick=$([ "${1:-}" = --quick ] && echo yes || true)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/candle-headroom"
export PATH="$cache/tools/bin:$PATH" CARGO_TERM_COLOR=never
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CARGO_TARGET_DIR

figure() { printf 'figure: %s = %s %s\n' "$@"; }

# README's program, as a package of its own: FOLDER FEATURES.
readme_program() {
    mkdir -p "$1/src"
    cat >"$1/Cargo.toml" <<MANIFEST
[package]
name = "readme"
version = "0.1.0"
edition = "2024"

[dependencies]
candle-core = "0.11"
candle-nn = "0.11"
candle-headroom = { path = "$root"$2 }

[workspace]
MANIFEST
    cp examples/first.rs "$1/src/main.rs"
    cp Cargo.lock "$1/Cargo.lock"
}

# Seconds of wall time that a command takes; its output goes to standard error.
seconds() {
    local start end
    start=$(date +%s.%N)
    "$@" >&2
    end=$(date +%s.%N)
    awk -v start="$start" -v end="$end" 'BEGIN { printf "%.2f", end - start }'
}

# From cargo's timings: seconds of candle-core, and from its end to the end of all: FOLDER.
timings() {
    python3 - "$1"/target/cargo-timings/cargo-timing.html <<'PYTHON'
import json, re, sys
units = json.loads(re.search(r"const UNIT_DATA = (\[.*?\]);\n", open(sys.argv[1]).read(), re.S).group(1))
candle = [unit for unit in units if unit["name"] == "candle-core" and "build" not in unit["target"]][0]
# The program itself is the last one: the library ends when it can be linked.
ours = [unit for unit in units if unit["name"].startswith("candle-headroom") and "build" not in unit["target"]]
end = candle["start"] + candle["duration"]
print(candle["duration"], max(unit["start"] + unit["duration"] for unit in ours) - end)
PYTHON
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a / b }'; }

readme_program "$work/readme" ""
readme_program "$work/small" ', default-features = false'

# What a program has in its tree without the default features, beyond candle-nn's own.
tree() { (cd "$1" && cargo tree --edges normal --prefix none ${2:+-p "$2"} | sed 's/ (.*//' | sort -u); }
packages=$(comm -13 <(tree "$work/small" candle-nn) <(tree "$work/small") | grep -vc -E '^(readme|candle-headroom)' || true)
figure build/small_packages "$packages" packages

echo "-- README's program in debug: candle-core, the library, the program's size" >&2
(cd "$work/readme" && cargo build --quiet) >&2
figure build/debug_mib "$(stat -c %s "$work/readme/target/debug/readme" | awk '{ printf "%.0f", $1 / 1048576 }')" MiB
rm -rf "$work/readme/target"

for kind in small readme; do
    (cd "$work/$kind" && cargo build --release --quiet --timings) >&2
    read -r candle library <<<"$(timings "$work/$kind")"
    echo "-- $kind: candle-core $candle s, then the library $library s" >&2
    case $kind in
        small) figure build/small_vs_candle_core "$(ratio "$library" "$candle")" x ;;
        readme) figure build/library_vs_candle_core "$(ratio "$library" "$candle")" x ;;
    esac
done
[ -z "$is_quick" ] || exit 0

if ! command -v cargo-llvm-lines >/dev/null; then
    CARGO_TARGET_DIR="$work/tools" cargo install --locked --quiet --root "$cache/tools" cargo-llvm-lines
fi
lines=0
count() {
    local total
    total=$("$@" 2>/dev/null | awk '/\(TOTAL\)/ { print $1; exit }')
    lines=$((lines + total))
}
(cd "$work/readme" && count cargo llvm-lines --release --bin readme && echo "$lines") >"$work/lines"
lines=$(tail -n 1 "$work/lines")
export CARGO_TARGET_DIR="$work/readme/target"
for package in $(cargo metadata --no-deps --format-version 1 |
    python3 -c 'import json, sys; print(*[p["name"] for p in json.load(sys.stdin)["packages"] if p["name"].startswith("candle-headroom")])'); do
    count cargo llvm-lines --release --lib -p "$package"
done
unset CARGO_TARGET_DIR
figure build/llvm_lines "$lines" lines

echo "-- a newcomer: README's first command from nothing, its test command after it, and the checker by itself" >&2
git clone --quiet "$root" "$work/clone"
cd "$work/clone"
main=$(grep -m1 '^cargo run .*--example train_text' README.md | sed 's/ *#.*//')
test=$(grep -m1 '^cargo test' README.md | sed 's/ *#.*//')
doctor=$(grep -m1 '^cargo run .* doctor$' docs/tutorial/real-run.md)
newcomer=$(seconds bash -c "$main")
tests=$(seconds bash -c "$test")
figure build/newcomer_vs_candle_core "$(ratio "$newcomer" "$candle")" x
figure build/tests_vs_candle_core "$(ratio "$tests" "$candle")" x
rm -rf target
figure build/doctor_seconds "$(seconds bash -c "$doctor || true")" s
