#!/usr/bin/env bash
# Runs models of candle-transformers, its sources untouched, under a `LayerMemory`, and checks the paths of their layers.
#
#     scripts/try-layers.sh
#
# It needs cargo and python3, and works below the target folder.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
[[ $CARGO_TARGET_DIR == /* ]] || CARGO_TARGET_DIR=$root/$CARGO_TARGET_DIR
folder=$CARGO_TARGET_DIR/models/layers
mkdir -p "$folder"
# The manifest of tests/models with candle-headroom beside candle-nn.
sed -e 's|^name = "models"|name = "models-layers"|' \
    -e "s|^candle-core = .*|&\ncandle-headroom = { path = \"$root\", features = [\"layers\"] }|" \
    -e "s|^path = \"src/main.rs\"|path = \"$root/tests/models/layers/main.rs\"|" \
    -e "s|^models = |models-layers = |" tests/models/Cargo.toml >"$folder/Cargo.toml"
sed -i "/^models-layers = /r "<(grep -E '^candle-headroom(-nn)? = \{ opt-level' Cargo.toml) "$folder/Cargo.toml"
# The versions of both lock files; cargo drops what is not needed.
python3 - tests/models/Cargo.lock Cargo.lock >"$folder/Cargo.lock" <<'PYTHON'
import re, sys
packages = {}
for name in sys.argv[1:]:
    head, *entries = open(name).read().split("[[package]]\n")
    for entry in entries:
        if "\nsource = " in entry:
            packages.setdefault(re.match(r'name = (".*")\nversion = (".*")', entry).groups(), entry.rstrip() + "\n")
print(head + "\n".join("[[package]]\n" + packages[key] for key in sorted(packages)), end="")
PYTHON
cargo run --quiet --manifest-path "$folder/Cargo.toml" --bin models-layers
