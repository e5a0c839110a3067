#!/usr/bin/env python3
"""Runs programs on the simulated CUDA driver twice, executing and only allocating, and compares the allocations and refusals of every
device, in their order, by their number and a digest of all sizes.

    . scripts/cuda-env.sh && python3 scripts/compare-modes.py [--memory BYTES] [--by-values NAME,NAME] -- PROGRAM… [-- PROGRAM…]

Prints a line for each program and two figures. It ends with status 1 if anything differs, or if a program ends otherwise in the two modes;
except for programs whose last argument is one of the names, which decide by values, so that they must differ."""

import json
import os
import subprocess
import sys
import tempfile


def run(program, mode, memory):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.jsonl")
        # `{folder}` in an argument is a new folder for each run.
        program = [argument.replace("{folder}", folder) for argument in program]
        variables = {"SIMULATED_CUDA_MODE": mode, "SIMULATED_CUDA_REPORT": report, "SIMULATED_CUDA_MEMORY": memory}
        ended = subprocess.run(program, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        lines = open(report).read().splitlines() if os.path.exists(report) else []
        entries = [json.loads(line) for line in lines]
        problems = [entry for entry in entries if "problem" in entry]
        devices = [entry for entry in entries if "device" in entry]
        if problems:
            sys.exit(f"{' '.join(program)}: {problems}")
        devices = sorted((device["device"], device["digest"], device["allocations"], device["peak_tensor_bytes"]) for device in devices)
        return ended, devices


def main():
    arguments, memory = sys.argv[1:], str(24 << 30)
    by_values = []
    while arguments[:1] in (["--memory"], ["--by-values"]):
        if arguments[0] == "--memory":
            memory = arguments[1]
        else:
            by_values = arguments[1].split(",")
        arguments = arguments[2:]
    programs, program = [], None
    for argument in arguments:
        if argument == "--":
            program = []
            programs.append(program)
        elif program is None:
            sys.exit(__doc__)
        else:
            program.append(argument)
    if not programs or not all(programs):
        sys.exit(__doc__)
    allocations = differing = unexpected = 0
    for program in programs:
        (executed, one), (allocated, other) = (run(program, mode, memory) for mode in ("execute", "allocate"))
        name = " ".join([os.path.basename(program[0])] + program[1:])
        if not one:
            print(executed.stderr[-2000:], file=sys.stderr)
            sys.exit(f"{name}: no device was used ({executed.returncode})")
        count = sum(device[2] for device in one)
        peak = max(device[3] for device in one) / 2**20
        same = one == other and executed.returncode == allocated.returncode
        allocations += count
        differing += not same
        decides = program[-1] in by_values
        unexpected += same == decides
        print(f"{'same' if same else 'differs, by values' if decides else 'DIFFERS'}: {count} allocations on {len(one)} devices, peak {peak:.1f} MiB: {name}", flush=True)
        if same == decides:
            print(f"  executed {executed.returncode}: {one}\n  allocated {allocated.returncode}: {other}\n{allocated.stderr[-500:]}")
    print(f"figure: dry_run/allocations_compared = {allocations} allocations")
    print(f"figure: dry_run/programs_differing = {differing} of {len(programs)} programs")
    sys.exit(unexpected > 0)


main()
