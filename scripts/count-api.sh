#!/usr/bin/env bash
# Counts the size of the public API, the sources, their documentation and unsafe code, and the tests. It needs bash, awk and find, and builds nothing.
#
#     scripts/count-api.sh [--check]
#
# With --check it exits with status 1 where a goal is missed: at most 25 names at the crate root, and `missing_docs` denied without
# an exception. Lines are only counted, because they grow with what the crate can do.
set -euo pipefail
cd "$(dirname "$0")/.."

# Names that the crate root re-exports. Modules and what is hidden from the documentation do not count.
root_names=$(awk '
    /^ *#\[doc\(hidden\)\]/ { hidden = 1; next }
    /^pub use / { use = "" ; reading = 1 }
    reading { sub(/\/\/.*/, ""); use = use $0 }
    reading && /;/ {
        reading = 0
        sub(/^pub use /, "", use); sub(/;.*/, "", use)
        gsub(/[A-Za-z0-9_]+::|[{} ]/, "", use)
        if (!hidden) names += split(use, parts, ",") - (use ~ /,$/)
        hidden = 0
    }
    END { print names + 0 }' src/lib.rs)
# Lines that are neither blank nor comments: a budget on these does not make documentation dear.
sources=(src kernels crates/cli/src crates/environment/src crates/nn/src crates/nn/kernels)
sources() { find "${sources[@]}" -name "*.rs" -o -name "*.js" -o -name "*.cu" -o -name "*.cuh"; }
source_files=$(sources | wc -l)
read -r all_lines code_lines doc_lines < <(sources | xargs cat | awk '
    { all++ }
    /^[[:space:]]*\/\/[\/!]/ { docs++ }
    !/^[[:space:]]*($|\/\/|\/\*|\*([[:space:]\/]|$))/ { code++ }
    END { print all, code, docs }')
# Of the libraries: blocks, and implementations of unsafe traits.
unsafe_blocks=$(sources | grep '\.rs$' | xargs cat | grep -vE '^[[:space:]]*//' | grep -oE '\bunsafe (\{|impl\b)' | wc -l)

# The compiler refuses an undocumented public item where `missing_docs` is denied, so nothing has to be counted.
documented=0
undenied=$(grep -EL '^#!\[(deny|forbid)\([^)]*\bmissing_docs\b' src/lib.rs crates/environment/src/lib.rs crates/nn/src/lib.rs || true)
if [ -z "$undenied" ] && ! grep -rEq 'allow\([^)]*\bmissing_docs\b' src crates/environment/src crates/nn/src; then
    documented=100
fi

# A test program is a [[test]] of Cargo.toml, or a file or folder of tests/ that cargo finds by itself.
binaries=$(
    {
        awk '/^\[\[test\]\]/ { test = 1; next } /^\[/ { test = 0 } test && /^name *=/ { gsub(/.*= *"|".*/, ""); print }' Cargo.toml
        if ! grep -Eq '^autotests *= *false' Cargo.toml; then
            find tests -maxdepth 1 -name '*.rs' -printf '%f\n' | sed 's/\.rs$//'
            find tests crates/*/tests -mindepth 2 -maxdepth 2 -name main.rs -printf '%h\n' | sed 's|.*/||'
        fi
    } | sort -u | wc -l
)

# What a reader of a step goes through, as CONTRIBUTING.md lists it. A name that is gone ends the script.
walk=$(awk '/^### How a step goes/ { walk = 1 } /^#/ && !/^### How a step goes/ { walk = 0 } walk && /^\| `/' CONTRIBUTING.md)
step_files=$(wc -l <<<"$walk")
step_functions=0
while IFS='|' read -r _ file names _; do
    file=$(tr -d '` ' <<<"$file")
    for name in $(tr -d '`,' <<<"$names"); do
        grep -Eq "^ *(pub(\([a-z:_ ]+\))? )?fn $name\b" "$file" || { echo "count-api: CONTRIBUTING.md lists $name in $file, which has no such function" >&2; exit 1; }
        step_functions=$((step_functions + 1))
    done
done <<<"$walk"

echo "figure: api/root_names = $root_names names"
echo "figure: api/code_lines = $code_lines lines"
echo "figure: api/all_lines = $all_lines lines"
echo "figure: api/doc_share = $((100 * doc_lines / all_lines)) %"
echo "figure: api/source_files = $source_files files"
echo "figure: api/unsafe_blocks = $unsafe_blocks blocks"
echo "figure: api/documented = $documented %"
echo "figure: walk/step_functions = $step_functions functions ($step_files files)"
echo "figure: tests/binaries = $binaries binaries"

if [ "${1:-}" = --check ]; then
    missed=0
    goal() { [ "$2" "$3" "$4" ] || { echo "count-api: $1 is $2, the goal is $3 $4" >&2; missed=1; }; }
    goal api/root_names "$root_names" -le 25
    goal api/documented "$documented" -eq 100
    exit $missed
fi
