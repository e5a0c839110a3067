#!/usr/bin/env bash
# Prints the driver calls per recorded operation as they would be with the patch of candle's backward pass that docs/reference/upstream.md shows.
#
#     scripts/count-with-patch.sh
#
# It copies this project and candle-core, patches the copies, and counts there on the simulated driver. Values are not computed. A build for
# CUDA of all that depends on candle takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/cuda-env.sh
target=$(realpath "${CARGO_TARGET_DIR:-target}")
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
core=$(cargo metadata --locked --format-version 1 | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
print(next(package["manifest_path"] for package in packages if package["name"] == "candle-core"))')
cp -r "$(dirname "$core")" "$copy/candle-core"

python3 - "$copy" <<'PYTHON'
import pathlib
import re
import sys

folder = pathlib.Path(sys.argv[1])


def edit(name, pattern, replacement, least):
    path = folder / name
    text, count = re.subn(pattern, replacement, path.read_text())
    if count < least:
        sys.exit(f"{name}: {count} places like `{pattern}`, expected {least}: another version?")
    path.write_text(text)
    return count


backward = "candle-core/src/backprop.rs"
def accumulated(found):
    total, tensor, gradient = found.groups()
    # The sum has the shape of the tensor.
    return f"grads.accumulate({tensor}, &{gradient.replace(total + '.', tensor + '.')})?;\n"


edges = edit(backward, r"let (\w+) = grads\.or_insert\((\w+)\)\?;\s*\*\1 = \1\.add\(&(.+)\)\?;?\n", accumulated, 40)
edit(backward, r"impl GradStore \{", """impl GradStore {
    /// Adds a gradient to that of a tensor; the first one is stored.
    fn accumulate(&mut self, tensor: &Tensor, grad: &Tensor) -> Result<()> {
        match self.0.entry(tensor.id()) {
            Entry::Occupied(mut entry) => {
                let sum = entry.get().add(grad)?;
                entry.insert(sum);
            }
            // Some operations need what they differentiate contiguous, as a sum with zeros was.
            Entry::Vacant(entry) => {
                entry.insert(grad.contiguous()?);
            }
        }
        Ok(())
    }
""", 1)
# candle's stored gradients may share memory now.
edit("crates/nn/src/graph/origin.rs", r"Gradient::alone\(gradient\.detach\(\)\)", "Gradient::new(gradient.detach(), false)", 1)
edit("crates/nn/src/graph/pass.rs", r"Gradient::alone\(other\)", "Gradient::new(other, false)", 1)
print(f"{edges} edges patched")
PYTHON

cd "$copy"
export CARGO_TARGET_DIR=$target/patched
printed=$(cargo bench --quiet --profile dev --features cuda,layers --config 'patch.crates-io.candle-core.path="candle-core"' --bench cuda -- --counts || true)
grep -E '^figure: cuda/driver_calls_per_(recorded|chained)_op = ' <<<"$printed" | sed 's/_op = /_op_patched = /'
