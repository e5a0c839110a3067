#!/usr/bin/env python3
"""Finds files under src/ that import from each other, directly or in a circle.

    python3 scripts/import-cycles.py [SRC]

A path such as `crate::optim::AdamW` or `super::Group`, in a `use` or in code, counts as an import from the file that defines the
name; re-exports are followed. Test modules do not count, and neither do names that arrive by a glob or as a method. Exits with
status 1 where there are cycles, and lists each one with the imports that close it.
"""
import pathlib
import re
import sys

SRC = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "src")
DEFINITION = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:default\s+)?(?:const\s+)?(?:unsafe\s+)?(?:async\s+)?(?:extern\s+\"C\"\s+)?"
    r"(?:struct|enum|trait|fn|type|const|static(?:\s+mut)?|union|macro_rules!)\s+(\w+)",
    re.M,
)
PATH = re.compile(r"\b((?:crate|self|super)(?:::\w+)+)")


def code_of(path):
    """The file without comments, strings and test modules."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', re.sub(r"//.*", "", path.read_text()))
    while match := re.search(r"#\[cfg\((?:all\()?test\b.*\]\s*(?:pub\s+)?mod\s+\w+\s*([{;])", text):
        end = match.end()
        depth = 1 if match.group(1) == "{" else 0
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: match.start()] + text[end:]
    return text


def split(tree):
    """The parts of `a, b::{c, d}` at its outer commas."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(tree):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(tree[start:at])
            start = at + 1
    return [part.strip() for part in parts + [tree[start:]] if part.strip()]


def leaves(tree, before=()):
    """Each path of a use tree, with the name that it gets."""
    head, brace, rest = tree.partition("{")
    if brace:
        before += tuple(part for part in head.strip().rstrip(":").split("::") if part)
        for part in split(rest.rstrip()[:-1]):
            yield from leaves(part, before)
        return
    path, _, alias = tree.partition(" as ")
    path = before + tuple(part.strip() for part in path.split("::") if part.strip())
    if path[-1] == "self":
        path = path[:-1]
    yield path, alias.strip() or path[-1]


class Module:
    def __init__(self, file, path):
        self.file, self.path = file, path
        code = code_of(file)
        self.names = set(DEFINITION.findall(code))
        self.body = re.sub(r"\buse\s+[^;]+;", "", code)
        uses = re.findall(r"\buse\s+([^;]+);", code)
        self.uses = [leaf for use in uses for leaf in leaves(" ".join(use.split()))]
        self.inline = {tuple(path.split("::")) for path in PATH.findall(self.body)}


modules = {}
for file in sorted(SRC.rglob("*.rs")):
    path = file.relative_to(SRC).with_suffix("").parts
    path = () if path in (("lib",), ("main",)) else path[:-1] if path[-1] == "mod" else path
    modules[path] = Module(file, path)


def define(module, path, seen=()):
    """The module that defines what `path`, seen from `module`, names; None for another crate's, or a module."""
    if (module.path, path) in seen or not path:
        return None
    seen += ((module.path, path),)
    first, rest = path[0], path[1:]
    if first == "crate":
        return define(modules[()], rest, seen)
    if first == "self":
        return define(module, rest, seen)
    if first == "super":
        parent = modules.get(module.path[:-1]) if module.path else None
        return parent and define(parent, rest, seen)
    if first in module.names:
        return module
    child = modules.get(module.path + (first,))
    if child:
        return define(child, rest, seen)
    for target, name in module.uses:
        # `use gemm::gemm` names another crate's function.
        if name == first and target[0] != first:
            return define(module, target + rest, seen)
    for target, name in module.uses:
        # Not another crate's names.
        ours = target[0] in ("crate", "self", "super") or module.path + target[:1] in modules
        if name == "*" and ours and (found := define(module, target[:-1] + path, seen)):
            return found
    return None


edges = {}
for module in modules.values():
    # A re-export is not an import: of the names in a `use`, only those that the file itself works with count.
    used = [path for path, name in module.uses if name != "*" and re.search(rf"\b{re.escape(name)}\b", module.body)]
    for path in used + sorted(module.inline):
        target = define(module, path)
        if target and target is not module:
            edges.setdefault(module.file, {}).setdefault(target.file, []).append(path[-1])


def components():
    """Tarjan's strongly connected components with more than one file."""
    order, low, stack, found = {}, {}, [], []

    def visit(file):
        order[file] = low[file] = len(order)
        stack.append(file)
        for other in edges.get(file, {}):
            if other not in order:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], order[other])
        if low[file] == order[file]:
            at = stack.index(file)
            found.append(stack[at:])
            del stack[at:]

    for file in sorted(edges):
        if file not in order:
            visit(file)
    return [sorted(files) for files in found if len(files) > 1]


cycles = components()
for files in cycles:
    print(f"import cycle of {len(files)} files:")
    for file in files:
        for other, names in sorted(edges.get(file, {}).items()):
            if other in files:
                print(f"  {file} imports {', '.join(sorted(set(names)))} from {other}")
print(f"figure: api/import_cycles = {len(cycles)} cycles")
sys.exit(1 if cycles else 0)
