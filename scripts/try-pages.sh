#!/usr/bin/env bash
# Tries each page of the book alone: takes its programs as they stand there, and the dependencies that the page names, makes examples of
# one package of them, builds these, and runs all but those that are marked `no_run`, which need a GPU or a launcher.
#
#     bash scripts/try-pages.sh [PAGE…]       # docs/how-to/gradient-checkpointing.md; by default all how-tos and the tutorial
#
# Prints `figure: docs/pages_tried_alone = N of N`, the pages that have a program. It needs python3 and, for the feature `mpi`, MPI.
# tests/programs/pages follows the tutorial step by step.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}" RUST_BACKTRACE=0
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
mkdir -p "$package/examples" "$package/src"
[ $# -gt 0 ] || set -- docs/tutorial/*.md docs/how-to/*.md
python3 - "$package" "$@" <<'PY'
import pathlib, re, sys, tomllib

package, root = pathlib.Path(sys.argv[1]), pathlib.Path.cwd()
needed, programs = {}, []
for page in map(pathlib.Path, sys.argv[2:]):
    text = page.read_text()
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.S | re.M)
    manifests = [tomllib.loads(code) for kind, code in blocks if kind == "toml" and "[dependencies]" in code]
    own = {}
    for manifest in manifests:
        own |= manifest["dependencies"]
    parts = [(kind, code) for kind, code in blocks if kind.split(",")[0] == "rust"]
    if page.stem == "out-of-memory":  # the loop before the change
        parts += [("rust", "".join(line[1:] + "\n" for line in code.split("\n") if line and line[0] in " -"))
                  for kind, code in blocks if kind == "diff"]
    for number, (kind, code) in enumerate(parts):
        if "fn main()" not in code or "ignore" in kind:
            continue
        for crate in ("anyhow", "candle_core", "candle_headroom", "candle_nn", "tempfile", "thiserror"):
            if re.search(rf"\b{crate}::", code) and crate.replace("_", "-") not in own:
                sys.exit(f"{page}: nothing says that a program needs {crate.replace('_', '-')}")
        name = f"{page.parent.name}-{page.stem}-{number}"
        (package / "examples" / f"{name}.rs").write_text(code)
        programs.append(f"{page.parent.name}/{page.stem} {name} {'no' if 'no_run' in kind else 'yes'}")
    for name, wanted in own.items():
        wanted = wanted if isinstance(wanted, dict) else {"version": wanted}
        needed.setdefault(name, {"features": set()} | wanted)
        needed[name]["features"] = set(needed[name]["features"]) | set(wanted.get("features", []))

lines = ['[package]', 'name = "pages"', 'version = "0.0.0"', 'edition = "2024"', '', '[dependencies]']
for name, wanted in sorted(needed.items()):
    source = f'path = "{root}"' if name == "candle-headroom" else f'version = "{wanted["version"]}"'
    features = ", ".join(f'"{feature}"' for feature in sorted(wanted["features"] - {"cuda"}))  # programs for GPUs are built without one
    lines.append(f"{name} = {{ {source}, features = [{features}] }}")
# The profiles of this repository, so that both share what is built.
own = (root / "Cargo.toml").read_text()
lines += ["", *("[" + part for part in own.split("\n[") if part.startswith("profile."))]
(package / "Cargo.toml").write_text("\n".join(lines) + "\n")
(package / "src/lib.rs").write_text("")
(package / "programs").write_text("".join(line + "\n" for line in programs))
PY
cp Cargo.lock "$package/"

tried=0 well=0
for page in $(cut -d' ' -f1 "$package/programs" | uniq); do
    tried=$((tried + 1))
    mapfile -t programs < <(awk -v page="$page" '$1 == page {print $2, $3}' "$package/programs")
    names=$(printf ' --example %s' "${programs[@]% *}")
    # shellcheck disable=SC2086
    if ! cargo build --quiet --offline --manifest-path "$package/Cargo.toml" $names; then
        echo "$page: its programs cannot be built"
        continue
    fi
    status=0
    for entry in "${programs[@]}"; do
        program=${entry% *}
        file=$CARGO_TARGET_DIR/debug/examples/$program
        if [ "${entry#* }" = yes ]; then
            (cd "$package" && timeout 300 "$file" >"$package/output" 2>&1) || { status=1; echo "$program failed:"; tail -n 20 "$package/output"; }
            [ -z "${SHOW:-}" ] || { echo "== $program"; cat "$package/output"; }
        fi
        rm -f "$file" "$file.d" "$CARGO_TARGET_DIR/debug/examples/${program//-/_}"-*
    done
    [ $status -ne 0 ] || well=$((well + 1))
done
echo "$(wc -l <"$package/programs") programs built, $(grep -c ' yes$' "$package/programs") of them run"
echo "figure: docs/pages_tried_alone = $well of $tried"
[ "$well" = "$tried" ]
