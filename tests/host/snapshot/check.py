"""Reads a memory snapshot as PyTorch's viewer does, fails where the viewer would, and prints what it holds.

    python3 check.py memory_snapshot.pickle

The viewer's reader (torch/utils/viz/MemoryViz.js) knows the opcodes below. It pairs each release with the allocation before it at the
same address, adds up sizes, and looks for the segment around each block, also around those that were freed in between.
"""
import bisect
import json
import pickle
import pickletools
import sys

OPCODES = set(
    "PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE EMPTY_DICT EMPTY_LIST "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 LIST DICT APPEND APPENDS SETITEM SETITEMS BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE".split()
)
# Up to here JavaScript's numbers, which hold addresses, are exact.
EXACT = 2**53

data = open(sys.argv[1], "rb").read()
for opcode, argument, _ in pickletools.genops(data):
    assert opcode.name in OPCODES, opcode.name
    assert opcode.name != "PROTO" or argument == 4, argument
    assert opcode.name != "LONG1" or argument.bit_length() < 64, argument
snapshot = pickle.loads(data)
assert set(snapshot) == {"segments", "device_traces"}, set(snapshot)
[trace] = snapshot["device_traces"]


def check_frames(frames):
    for frame in frames:
        assert set(frame) == {"filename", "line", "name"}, frame
        assert isinstance(frame["filename"], str) and isinstance(frame["name"], str) and isinstance(frame["line"], int), frame


segments = sorted((segment["address"], segment["total_size"]) for segment in snapshot["segments"])
for (start, size), (after, _) in zip(segments, segments[1:]):
    assert size > 0 and start + size <= after, (start, size, after)
starts = [start for start, _ in segments]


def check_place(address, size):
    assert address < EXACT, address
    start, total = segments[bisect.bisect_right(starts, address) - 1]
    assert start <= address and address + size <= start + total, (address, size, start, total)


live_at_end = {}
others = 0
for segment in snapshot["segments"]:
    address, active = segment["address"], 0
    for block in segment["blocks"]:
        assert block["state"] in ("active_allocated", "inactive"), block
        if block["state"] == "active_allocated":
            active += block["size"]
            check_frames(block["frames"])
            live_at_end[address] = (block["requested_size"], block["frames"])
            if block["frames"][0]["filename"] == "allocated":
                others += block["size"]
        address += block["size"]
    assert address == segment["address"] + segment["total_size"], segment
    assert segment["allocated_size"] == segment["active_size"] == active and segment["device"] == 0, segment

live, freed_from_before, delta, deltas = {}, 0, 0, [0]
counts = dict.fromkeys(["alloc", "free_requested", "free_completed", "oom", "snapshot"], 0)
categories, paths, threads, ooms, by_category = set(), {}, set(), [], {}
requested = None
for event in trace:
    action, size = event["action"], event["size"]
    counts[action] += 1
    assert event["stream"] == 0 and event["time_us"] > 1_600_000_000_000_000, event
    assert (requested is None) == (action != "free_completed"), (requested, event)
    check_frames(event.get("frames", []))
    if "category" in event:
        categories.add(event["category"])
    if action == "alloc":
        address = event["addr"]
        assert address not in live, event
        check_place(address, size)
        live[address] = (size, event["frames"])
        by_category[event.get("category")] = by_category.get(event.get("category"), 0) + size
        names = [frame["name"] for frame in reversed(event["frames"])]
        threads.add(names[0])
        path = "/".join(names[1:])
        paths[path] = paths.get(path, 0) + size
        delta += size
    elif action == "free_requested":
        requested = (event["addr"], size)
    elif action == "free_completed":
        assert requested == (event["addr"], size), (requested, event)
        requested = None
        check_place(event["addr"], size)
        known = live.pop(event["addr"], None)
        assert known is None or known[0] == size, (known, event)
        if known is None:
            freed_from_before += size
        delta -= size
    elif action == "oom":
        ooms.append([size, event["device_free"], "/".join(frame["name"] for frame in reversed(event["frames"]))])
    deltas.append(delta)
assert requested is None and trace[-1]["action"] == "snapshot"
# A version of the viewer fails on categories without this one.
assert not categories or "unknown" in categories, categories
# What the trace leaves is what the segments hold.
for address, (size, frames) in live.items():
    assert live_at_end[address] == (size, frames), address
assert others == sum(size for size, _ in live_at_end.values()) - sum(size for size, _ in live.values())
first = others + freed_from_before
print(
    json.dumps(
        {
            "counts": counts,
            "first": first,
            "last": first + delta,
            "peak": first + max(deltas),
            "freed_from_before": freed_from_before,
            "live": sorted(size for size, _ in live.values()),
            "by_category": {str(category): size for category, size in by_category.items()},
            "paths": paths,
            "threads": len(threads),
            "ooms": ooms,
        }
    )
)
