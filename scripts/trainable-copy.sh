#!/usr/bin/env bash
# Copies a crate that depends on candle-nn, and makes the copy depend on candle-headroom-nn in its place, so that its models train.
# Besides that line of its Cargo.toml, only calls of some methods of candle's tensors change, whose gradients candle-core leaves out or
# gets wrong: `x.max_pool2d(2)` becomes `x.with_gradients().max_pool2d(2)`, and the file ends with a line that brings
# `with_gradients` into scope. A method that the crate defines itself, or that has no replacement, is left alone, which it prints. Run it
# in your project's folder; it needs cargo and python3.
#
#     trainable-copy.sh [OPTIONS] [CRATE] [DEST]
#
#     CRATE           a dependency in your Cargo.lock, as NAME or NAME@VERSION (default: candle-transformers)
#     DEST            the folder of the copy (default: NAME-trainable)
#     --path DIR      the folder of candle-headroom-nn (default: crates/nn beside this script's folder, where there is one)
#     --version REQ   or its version on crates.io
#     --package NAME  another package in its place; it needs a `WithGradients`
#
# The sources are those of the version in your Cargo.lock, from cargo's registry cache; cargo fetches them if they are missing. At the
# end it prints the lines for your Cargo.toml. A second run changes nothing.
set -euo pipefail

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; }
die() {
    echo "trainable-copy: $*" >&2
    exit 1
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
path='' version='' package=candle-headroom-nn names=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit ;;
        --path | --version | --package)
            [ $# -ge 2 ] || die "$1 needs a value"
            printf -v "${1#--}" %s "$2"
            shift ;;
        -*) die "unknown option $1; --help lists them" ;;
        *) names+=("$1") ;;
    esac
    shift
done
[ ${#names[@]} -le 2 ] || die "expected CRATE and DEST, got: ${names[*]}"
crate=${names[0]:-candle-transformers}
dest=${names[1]:-${crate%@*}-trainable}
[ -z "$path" ] || [ -z "$version" ] || die "give --path or --version, not both"
if [ -z "$path$version" ]; then
    [ -f "$here/../crates/nn/Cargo.toml" ] || die "where is $package? Give --path DIR or --version REQ"
    path=$here/../crates/nn
fi
command -v cargo >/dev/null || die "needs cargo"
command -v python3 >/dev/null || die "needs python3"
[ -f Cargo.toml ] || die "no Cargo.toml here: run it in your project's folder"

metadata=$(mktemp)
trap 'rm -f "$metadata"' EXIT
# Every feature, so that optional dependencies are found as well.
cargo metadata --format-version 1 --locked --all-features >"$metadata" ||
    die "cargo cannot read this project as it is locked (its message is above): if Cargo.lock is missing, or older than Cargo.toml, \
run \`cargo metadata >/dev/null\` or \`cargo build\` once"

python3 - "$metadata" "$crate" "$dest" "$package" "$path" "$version" <<'PYTHON'
import json, os, re, shutil, sys, tempfile

metadata, crate, dest, package, path, version = sys.argv[1:]


def die(message):
    sys.exit(f"trainable-copy: {message}")


def seen_from(folder, path):
    """Relative where both are inside the project, so that it can move."""
    folder, path = os.path.realpath(folder), os.path.realpath(path)
    inside = all((one + os.sep).startswith(root + os.sep) for one in (folder, path))
    return os.path.relpath(path, folder) if inside else path


with open(metadata) as file:
    project = json.load(file)
left_out = shutil.ignore_patterns(".cargo*", "Cargo.lock", "Cargo.toml.orig")
packages, root = project["packages"], os.path.realpath(project["workspace_root"])
name, _, wanted = crate.partition("@")
found = [one for one in packages if one["name"] == name and wanted in ("", one["version"])]
if not found:
    users = sorted({one["name"] for one in packages if any(dep["name"] == "candle-nn" for dep in one["dependencies"])})
    die(f"`{crate}` is not in this project's Cargo.lock; these depend on candle-nn: {', '.join(users) or 'none'}")
if len(found) > 1:
    die(f"choose one of {', '.join(one['name'] + '@' + one['version'] for one in found)}")
found = found[0]
source = os.path.dirname(found["manifest_path"])

# What the copy's manifest says in place of candle-nn's version.
if path:
    manifest = os.path.join(path, "Cargo.toml")
    if not os.path.isfile(manifest):
        die(f"{path} holds no Cargo.toml: --path names the folder of {package}")
    with open(manifest) as file:
        text = file.read()
    if not re.search(rf'^name\s*=\s*"{re.escape(package)}"', text, re.M):
        die(f"{manifest} is not the package {package}")
    # candle's types are those of one version: another one's VarBuilder is another type.
    asked = re.search(r'^candle-nn\s*=\s*(?:\{.*?version\s*=\s*)?"[=^~ ]*(\d+\.\d+)', text, re.M)
    locked = [one["version"] for one in packages if one["name"] == "candle-nn"]
    if asked and locked and not any(one.startswith(asked[1] + ".") for one in locked):
        die(f"{package} is made for candle-nn {asked[1]}, this project has {', '.join(locked)}")
    replacement = f'package = "{package}"\npath = {json.dumps(seen_from(dest, path))}'
else:
    replacement = f'package = "{package}"\nversion = {json.dumps(version)}'


def entry():
    print("Add to the Cargo.toml of your workspace:\n")
    print(f"[patch.crates-io]\n{name} = {{ path = {json.dumps(seen_from(root, dest))} }}")


if os.path.realpath(source) == os.path.realpath(dest):
    print(f"{dest} is what this project uses for {name} {found['version']} already. Nothing is changed.")
    sys.exit()
if not (found["source"] or "").startswith(("registry+", "sparse+")):
    die(f"{name} {found['version']} comes from {found['source'] or source}, not from a registry: "
        f"change its line `candle-nn` there to: {replacement.replace(chr(10), ', ')}")

with open(found["manifest_path"]) as file:
    text = file.read()
# Manifests in a registry are normalized: each dependency is a table of its own.
table = re.compile(r'^(\[(?:target\..+\.)?(?:dev-|build-)?dependencies\.candle-nn\]\n(?:[^\[\n].*\n)*?)version = ".*"$', re.M)
tables = len(re.findall(r'dependencies\.candle-nn\]$', text, re.M))
changed, count = table.subn(lambda match: match[1] + replacement, text)
if not tables:
    die(f"{name} {found['version']} does not depend on candle-nn")
if count != tables or re.search(r'^package = "candle-nn"$', text, re.M):
    die(f"{found['manifest_path']} does not name candle-nn in the usual way; nothing is copied")


# Those of candle_headroom_nn::WithGradients.
METHODS = """max_pool2d max_pool2d_with_stride avg_pool2d avg_pool2d_with_stride interpolate1d upsample_nearest1d interpolate2d
    upsample_nearest2d upsample_bilinear2d conv1d conv1d_with_algo conv2d conv2d_with_algo conv_transpose1d scatter scatter_add
    unfold""".split()
# Without a gradient, and without a replacement.
UNREPLACED = ["upsample_bilinear2d_with_scale"]
SCOPE = b"\n#[allow(unused_imports)]\nuse candle_nn::WithGradients as _;\n"


def first_argument(text):
    """The first of several arguments and the rest behind the comma, of a call's text after its parenthesis. None if it is not all here."""
    depth = 0
    for at, letter in enumerate(text):
        if letter == "," and depth == 0:
            return text[:at].strip(), text[at + 1:].lstrip()
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            break
    return None


def with_gradients(sources):
    """Rust sources, by path, with calls of these methods changed, and what was left alone: methods that the crate defines itself, those
    without a replacement, and functions that are not called on one line."""
    rust = {path: text.decode() for path, text in sources.items() if path.endswith(".rs")}
    own = {name for text in rust.values() for name in re.findall(r"\bfn\s+(\w+)\s*(?:<[^(]*>)?\(\s*&?\s*(?:mut\s+)?self\b", text)}
    names = "|".join(name for name in METHODS if name not in own)
    method = re.compile(rf"\.\s*({names})(?=\s*\()")
    function = re.compile(rf"\bTensor::({names})\b(\()?")
    other = re.compile(rf"(?:\.\s*|\bTensor::)({'|'.join(METHODS + UNREPLACED)})(?=\s*\()")
    changed, left = {}, []
    for path, text in sorted(rust.items()):
        lines, count = text.split("\n"), 0
        for at, line in enumerate(lines):
            if line.lstrip().startswith("//"):
                continue
            leave = lambda name, why: left.append(f"left alone: {name} in {path}:{at + 1}, {why}")
            for name in other.findall(line):
                if name in own:
                    leave(name, "because the crate has a method of this name")
                elif name in UNREPLACED:
                    leave(name, "which has no gradient and no replacement")
            line, methods = method.subn(r".with_gradients().\1", line)
            count += methods
            # From the end, so that what stands within another call is changed first.
            for found in reversed(list(function.finditer(line))):
                argument = found[2] and first_argument(line[found.end():])
                if not argument:
                    leave(found[1], "because the tensor that it is called on is not on the same line")
                    continue
                tensor = re.sub(r"^&\s*", "", argument[0])
                tensor = tensor if re.fullmatch(r"[\w.]+", tensor) else f"({tensor})"
                line = f"{line[:found.start()]}{tensor}.with_gradients().{found[1]}({argument[1]}"
                count += 1
            lines[at] = line
        if count:
            changed[path] = "\n".join(lines).encode() + SCOPE
    return changed, left


def files(folder):
    """The contents of a copy's files but its Cargo.toml, by path."""
    contents = {}
    for at, folders, names in os.walk(folder):
        kept = set(folders + names) - left_out(at, folders + names)
        folders[:] = [one for one in folders if one in kept]
        for one in kept.intersection(names):
            file = os.path.join(at, one)
            with open(file, "rb") as opened:
                contents[os.path.relpath(file, folder)] = opened.read()
    contents.pop("Cargo.toml", None)
    return contents


if os.path.lexists(dest):
    try:
        with open(os.path.join(dest, "Cargo.toml")) as file:
            same = file.read() == changed
    except OSError:
        same = False
    if not same:
        die(f"{dest} exists and is not this copy: remove it or name another folder")
    sources = files(source)
    if files(dest) == sources | with_gradients(sources)[0]:
        print(f"{dest} is the copy of {name} {found['version']} already. Nothing is changed.")
    else:
        print(f"{dest} is a copy of {name} {found['version']} whose files were changed since. It is left as it is.")
else:
    parent = os.path.dirname(os.path.realpath(dest))
    os.makedirs(parent, exist_ok=True)
    # Complete or not there at all.
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        copy = os.path.join(folder, "copy")
        shutil.copytree(source, copy, ignore=left_out)
        with open(os.path.join(copy, "Cargo.toml"), "w") as file:
            file.write(changed)
        calls, left = with_gradients(files(source))
        for one, text in calls.items():
            with open(os.path.join(copy, one), "wb") as file:
                file.write(text)
        os.rename(copy, dest)
    print(f"{dest} is {name} {found['version']} with {package} in place of candle-nn.")
    if calls:
        print(f"Methods of tensors are called with gradients in {len(calls)} files: {', '.join(sorted(calls))}.")
    for one in left:
        print(one)
entry()
PYTHON
