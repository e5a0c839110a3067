#!/usr/bin/env python3
"""Changes the source at random places, one at a time, and says which changes no test notices.

    python3 scripts/try-mutants.py [--sample N] [--seed S] [--list] [--without-ranks]

--sample takes N mutants (default 100) of those of trainers (src/train, with what ranks agree on), batches, checkpoints, the optimizers'
commit and nn's graph; --seed says which (default 28). The same seed takes the same ones of the same source. --list prints twice as many, of
which the first N that compile are taken, and ends.

cargo-mutants says which changes there are. All of the sample are compiled at once: a function with a mutant holds its body twice, and the
environment variable MUTANT says which of the two runs ("mutation schemata", Untch, Offutt and Harrold, 1993). So the tests are built once,
not once for each mutant. What does not compile so does not count, and is named: a change of the wrong type, a `const fn`, a function whose
closures are its result.

The tests are those beside the code and `nn` for the mutants of nn; for all others `promises`, `library`, `host` and
`optimizer_allocations`, and where there is Open MPI with libclang `ranks` for what ranks share. A mutant that a test runs into for too long
counts as noticed. A run that is interrupted goes on where it was, as long as the source stays the same; what was missed is tried again,
with the tests as they are then. cargo-mutants is installed where it is missing, into a cache folder.
"""

import argparse
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "candle-headroom"
RESULTS = Path(os.environ.get("CARGO_TARGET_DIR") or CACHE / "target") / "mutants"
TREE = RESULTS / "tree"
CARGO_MUTANTS = "27.1.0"
PACKAGES = ["-p", "candle-headroom", "-p", "candle-headroom-nn"]
PLACES = ["src/train/**", "src/batch/**", "src/checkpoint/**", "src/optim/fused/**", "src/optim/commit.rs", "crates/nn/src/graph/**"]
# What runs with CUDA alone, or without a default feature, is compiled by no test here. `Debug` is for people, and the tests of a module are none of its code.
WITHOUT = ["-e", "**/tests.rs", "-e", "**/tests/**", "-e", "**/cuda*", "-e", "**/cuda/**", "-e", "**/alone.rs", "-e", "**/without_nn.rs", "-E", "impl (std::|core::)?(fmt::)?Debug for"]
# What only one process has is not tried by the tests of ranks, which take the longest.
SHARED = ("src/train/", "src/checkpoint/", "src/optim/", "src/batch/position.rs")
TESTS = ["promises", "library", "host", "optimizer_allocations", "nn", "ranks"]

# Which mutant runs: none where the variable is not set. It is read once, without an allocation, because tests count those.
CHOICE = """
#[allow(unsafe_code)]
pub(crate) fn is_mutant(number: usize) -> bool {
    static CHOSEN: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| {
        unsafe extern "C" {
            fn getenv(name: *const std::ffi::c_char) -> *const std::ffi::c_char;
        }
        // SAFETY: the name ends with a zero byte, and nothing in these tests changes this variable.
        let value = unsafe { getenv(c"MUTANT".as_ptr()) };
        if value.is_null() {
            return usize::MAX;
        }
        // SAFETY: `getenv` gives a string that ends with a zero byte.
        unsafe { std::ffi::CStr::from_ptr(value) }.to_str().ok().and_then(|v| v.parse().ok()).unwrap_or(usize::MAX)
    }) == number
}
"""


def cargo_mutants():
    os.environ["PATH"] = f"{CACHE / 'tools/bin'}:{os.environ['PATH']}"
    if not shutil.which("cargo-mutants"):
        build = RESULTS / "tool"
        install = ["cargo", "install", "--locked", "--quiet", "--root", CACHE / "tools", f"cargo-mutants@{CARGO_MUTANTS}"]
        subprocess.run(install, check=True, env=os.environ | {"CARGO_TARGET_DIR": str(build)})
        shutil.rmtree(build)
    places = [word for place in PLACES for word in ("-f", place)]
    command = ["cargo", "mutants", *PACKAGES, *places, *WITHOUT, "--colors", "never", "--list", "--json"]
    return json.loads(subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout)


def has_mpi():
    clang = os.environ.get("LIBCLANG_PATH") or "/usr/lib/llvm-*/lib"
    return bool(shutil.which("mpirun") and shutil.which("mpicc") and glob.glob(f"{clang}/libclang*.so*"))


class Source:
    """A file whose functions hold their mutants beside themselves."""

    def __init__(self, file, mutants):
        self.file, self.mutants = file, mutants
        self.text = (ROOT / file).read_text()
        self.starts = [0] + [match.end() for match in re.finditer("\n", self.text)]

    def offset(self, place):
        # Columns count characters, from one.
        return self.starts[place["line"] - 1] + place["column"] - 1

    def body(self, start, end):
        """Where the function's body begins: the first brace outside parentheses, attributes, strings and comments."""
        depth, at = 0, start
        token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\]|\\.)*"|[\[({})\]]|#!?\[', re.S)
        while match := token.search(self.text, at, end):
            found = match.group()
            if found == "{" and depth == 0:
                return match.start()
            depth += (found[-1] in "[(" and not found.startswith(('"', "/"))) - (found in ("]", ")"))
            at = match.end()
        return None

    def with_mutants(self):
        """The file's text with its mutants; and the range of lines that each mutant takes there, and its function."""
        functions = {}
        for number, mutant in self.mutants.items():
            span = mutant["function"]["span"]
            functions.setdefault((self.offset(span["start"]), self.offset(span["end"])), []).append(number)
        pieces, at, line, ranges = [], 0, 1, {}

        def add(piece):
            nonlocal line
            pieces.append(piece)
            line += piece.count("\n")

        for (start, end), numbers in sorted(functions.items()):
            begin = self.body(start, end)
            if begin is None or start < at or re.search(r"\bconst\s+(unsafe\s+)?fn\b", self.text[start:begin]):
                continue
            add(self.text[at:begin])
            function = line
            add("{\n")
            for number in numbers:
                mutant = self.mutants[number]
                first, last = self.offset(mutant["span"]["start"]), self.offset(mutant["span"]["end"])
                if first <= begin:
                    body = "{ " + mutant["replacement"] + " }"
                else:
                    body = self.text[begin:first] + mutant["replacement"] + self.text[last:end]
                add(f"if crate::is_mutant({number}) ")
                top = line
                add(body)
                ranges[number] = (top, line)
                add("\nelse ")
            add(self.text[begin:end] + "\n}")
            for number in numbers:
                ranges[number] += (function, line)
            at = end
        add(self.text[at:])
        return "".join(pieces), ranges


def write(path, content):
    """Only what changes, so that the build that exists is used."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def plant(mutants):
    """Writes the tree with these mutants: for each file of it the lines of its mutants."""
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout
    files = [name for name in tracked.decode().split("\0") if name and (ROOT / name).is_file()]
    by_file = {}
    for number, mutant in mutants.items():
        by_file.setdefault(mutant["file"], {})[number] = mutant
    lines = {}
    for name in files:
        content = (ROOT / name).read_bytes()
        if name in by_file:
            text, lines[name] = Source(name, by_file[name]).with_mutants()
            content = text.encode()
        if name in ("src/lib.rs", "crates/nn/src/lib.rs"):
            content += CHOICE.encode()
        write(TREE / name, content)
    for path in TREE.rglob("*.rs"):
        if str(path.relative_to(TREE)) not in files and "target" not in path.parts:
            path.unlink()
    return lines


def build(command):
    """The programs that a cargo command builds, and its errors as (file, line)."""
    run = subprocess.run([*command, "--message-format=json"], cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    programs, errors = {}, []
    for line in run.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message.get("executable"):
            folder = Path(message["manifest_path"]).parent
            name = f"{message['package_id'].split('/')[-1].split('#')[0]}:{message['target']['name']}"
            if message["profile"]["test"]:
                programs[name] = (folder, message["executable"])
        if message["reason"] == "compiler-message" and message["message"]["level"] == "error":
            spans = [span for span in message["message"]["spans"] if span["is_primary"]]
            errors += [(str(Path(span["file_name"])), span["line_start"], message["message"]["rendered"]) for span in spans]
    if run.returncode != 0 and not errors:
        sys.exit(f"{run.stderr[-4000:]}\nthe tree does not build")
    return programs, errors


def without_errors(mutants, command):
    """Builds, and leaves out those mutants that do not compile, until the rest does."""
    left_out = {}
    while True:
        lines = plant(mutants)
        planted = {number for ranges in lines.values() for number in ranges}
        for number in [number for number in mutants if number not in planted]:
            left_out[number] = mutants.pop(number)
        programs, errors = build(command)
        if not errors:
            return programs, left_out
        gone = set()
        for file, line, rendered in errors:
            ranges = lines.get(file, {})
            inner = {number for number, (top, end, _, _) in ranges.items() if top <= line <= end}
            around = {number for number, (_, _, top, end) in ranges.items() if top <= line <= end}
            if not inner and not around:
                sys.exit(f"{rendered}\nan error outside the mutants: {file}:{line}")
            gone |= inner or around
        print(f"{len(gone)} do not compile", flush=True)
        for number in gone:
            left_out[number] = mutants.pop(number)


def notices(folder, program, number, limit):
    """Whether the tests of a program fail with this mutant: the name of the first test, or none."""
    environment = dict(os.environ, CARGO_MANIFEST_DIR=str(folder))
    if number is not None:
        environment["MUTANT"] = str(number)
    process = subprocess.Popen([program], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)

    def end():
        # Ranks are in the same group, except those that `mpirun` starts, which end with it.
        try:
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(0.5)
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    late = threading.Event()
    timer = threading.Timer(limit, lambda: (late.set(), end()))
    timer.start()
    failed = None
    for line in process.stdout:
        if match := re.match(r"test (\S+).* \.\.\. FAILED", line):
            failed = match[1]
            end()
            break
    process.stdout.close()
    status = process.wait()
    timer.cancel()
    if late.is_set():
        return f"more than {limit:.0f} s"
    return failed or (f"status {status}" if status != 0 else None)


def order(programs, seconds, file):
    """The programs that may notice a mutant of this file, the quickest first."""
    is_nn = file.startswith("crates/nn/")

    def may_notice(name):
        if name.startswith("nn:"):
            return is_nn
        return not name.endswith(":ranks") or file.startswith(SHARED)

    return sorted(filter(may_notice, programs), key=seconds.get)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--without-ranks", action="store_true")
    options = parser.parse_args()
    if options.sample < 1:
        parser.error("--sample needs a number above 0")

    RESULTS.mkdir(parents=True, exist_ok=True)
    every = sorted(cargo_mutants(), key=lambda mutant: mutant["name"])
    every = [mutant for mutant in every if mutant.get("function")]
    # More than asked for, because some do not compile; of those that do, the first are taken.
    mutants = dict(enumerate(random.Random(options.seed).sample(every, min(2 * options.sample, len(every)))))
    print(f"{options.sample} of {len(every)} mutants, seed {options.seed}", flush=True)
    if options.list:
        print(*(mutant["name"] for mutant in mutants.values()), sep="\n")
        return

    features, tests = "image,layers,metrics,parquet", [test for test in TESTS if test != "ranks"]
    if has_mpi() and not options.without_ranks:
        features, tests = features + ",mpi", TESTS
        # In containers this runs as root, which `mpirun` refuses otherwise.
        os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    else:
        print("the tests of ranks are left out")
    os.environ |= {"CARGO_TARGET_DIR": str(RESULTS / "target"), "CARGO_TERM_COLOR": "never"}
    targets = [word for test in tests for word in ("--test", test)]
    shared = [*PACKAGES, "--features", features, "--locked"]
    _, left_out = without_errors(mutants, ["cargo", "check", "--lib", *shared])
    mutants = dict(list(mutants.items())[: options.sample])
    left_out = {number: mutant for number, mutant in left_out.items() if number <= max(mutants)}
    programs, more = without_errors(mutants, ["cargo", "test", "--no-run", "--lib", *targets, *shared])
    left_out |= more
    for mutant in left_out.values():
        print(f"does not compile: {mutant['name']}")

    def named(*folders):
        paths = sorted(path for folder in folders for path in (TREE / folder).rglob("*.rs"))
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]

    log = RESULTS / f"{named('src', 'crates/nn/src')}-{'-'.join(tests)}.tsv"
    # Other tests have other times, and have to pass without a mutant first.
    times = RESULTS / f"{named('.')}.json"
    seconds = json.loads(times.read_text()) if times.exists() else {}
    for name, (folder, program) in programs.items():
        if name in seconds:
            continue
        start = time.monotonic()
        if failed := notices(folder, program, None, 3600):
            sys.exit(f"the tests fail without a mutant: {name}, {failed}")
        seconds[name] = time.monotonic() - start
        print(f"{name}: {seconds[name]:.0f} s without a mutant", flush=True)
        times.write_text(json.dumps(seconds))

    known = dict(line.split("\t", 1) for line in log.read_text().splitlines()) if log.exists() else {}
    for number, mutant in sorted(mutants.items(), key=lambda item: item[1]["name"]):
        name = mutant["name"]
        if not known.get(name):
            noticed = None
            for test in order(programs, seconds, mutant["file"]):
                limit = 3 * seconds[test] + 60
                if noticed := notices(*programs[test], number, limit):
                    break
            known[name] = noticed or ""
            with log.open("a") as file:
                file.write(f"{name}\t{known[name]}\n")
        print(f"{'noticed by ' + known[name] if known[name] else 'MISSED'}: {name}", flush=True)
    missed = [mutant["name"] for mutant in mutants.values() if not known[mutant["name"]]]
    print(f"figure: tests/mutants_missed = {len(missed)} of {len(mutants)}")
    if missed:
        print("missed:", *missed, sep="\n")


main()
