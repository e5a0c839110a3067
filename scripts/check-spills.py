#!/usr/bin/env python3
"""Assembles this workspace's CUDA kernels, as the driver does when it loads them, and says which of them need more registers than a thread has, so
that they spill into memory:

    . scripts/cuda-env.sh && python3 scripts/check-spills.py [TARGET]

TARGET is the folder of a build with `--features cuda`, by default target/release. It needs CUDA's `ptxas`. Prints two figures; it ends with
status 1 if a kernel spills more than is known of it."""

import pathlib
import re
import subprocess
import sys

# Packages with kernels: their folders of sources and the beginning of their build scripts' folders.
PACKAGES = [("kernels", "candle-headroom"), ("crates/nn/kernels", "candle-headroom-nn")]
HASH = "[0-9a-f]" * 16
# Bytes. Each of these holds the code for all types of parameters and moments, and 4 blocks on a multiprocessor need at most 64 registers. With them
# the update of a large f32 parameter was measured on an H200 at 0.88 of the bandwidth of a copy.
KNOWN = {"move_adam": 372, "move_sgd": 208, "move_lion": 36}


def compiled(target, sources, package):
    """The newest PTX of each source."""
    for source in sorted(pathlib.Path(sources).glob("*.cu")):
        built = target.glob(f"build/{package}-{HASH}/out/{source.stem}.ptx")
        newest = max(built, key=lambda file: file.stat().st_mtime, default=None)
        if newest is None:
            sys.exit(f"{source} is not compiled in {target}: cargo build --release --features cuda")
        yield newest


def assembled(file):
    """Each kernel's name, its registers, and the bytes that it spills."""
    architecture = re.search(r"^\.target (\w+)", file.read_text(), re.MULTILINE).group(1)
    command = ["ptxas", "-v", f"-arch={architecture}", str(file), "-o", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode != 0:
        sys.exit(f"{file}: {said.stderr}")
    for part in said.stderr.split("Compiling entry function '")[1:]:
        name = part.split("'")[0]
        stores, loads = map(int, re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part).groups())
        yield name, int(re.search(r"Used (\d+) registers", part).group(1)), stores + loads


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    target = pathlib.Path(sys.argv[1] if len(sys.argv) == 2 else "target/release")
    files = [file for sources, package in PACKAGES for file in compiled(target, sources, package)]
    kernels = [kernel for file in files for kernel in assembled(file)]
    spilling = [kernel for kernel in kernels if kernel[2] > 0]
    for name, registers, spilled in sorted(spilling, key=lambda kernel: -kernel[2]):
        print(f"{name} spills {spilled} bytes, with {registers} registers")
    most = max(kernels, key=lambda kernel: kernel[1])
    print(f"figure: cuda/kernels_spilling = {len(spilling)} of {len(kernels)} kernels")
    print(f"figure: cuda/registers_most = {most[1]} registers ({most[0]})")
    sys.exit(any(spilled > KNOWN.get(name, 0) for name, _, spilled in spilling))


main()
