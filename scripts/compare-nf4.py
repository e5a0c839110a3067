#!/usr/bin/env python3
"""Compares NF4 with bitsandbytes on the CPU, by writing crates/nn/tests/data/nf4.safetensors, which the test `nf4::` of crates/nn reads.

    python3 scripts/compare-nf4.py [--write]

Without --write it fails if the file would change. It takes a minute and needs torch, bitsandbytes and safetensors from PyPI (written with 2.15.0,
0.50.2 and 0.8.0). The file holds what bitsandbytes makes of a weight that the test can make too, of (300, 100): neither a row nor the whole is a multiple
of a block, and the scales have two blocks. The 8-bit codes of scales are the nearest ones, as bitsandbytes' GPU code and its portable code take them; its
code for CPUs takes the second nearest for some in a thousand. The mean of the scales is exact in any order of summation.
"""

import sys
from pathlib import Path

import bitsandbytes.functional as F
import torch
from safetensors.torch import load_file, save_file

FILE = Path(__file__).parent.parent / "crates/nn/tests/data/nf4.safetensors"
SHAPE = (300, 100)

index = torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.int64)
# A multiple of 1/4096 below 1/2, times a power of two that changes from block to block.
number = (index * 2654435761 % 2**32 >> 20) - 2048
weight = (number.float() / 4096 * 2.0 ** (index // 64 * 7 % 5 - 2)).reshape(SHAPE)

codes, state = F.quantize_4bit(weight, blocksize=64, quant_type="nf4")
mean = state.absmax.mean()
map = F.create_dynamic_map()
rest = torch.nn.functional.pad(state.absmax - mean, (0, -state.absmax.numel() % 256)).reshape(-1, 256)
of_scales = rest.abs().max(dim=1)[0]
near = torch.bucketize(rest * (1 / of_scales)[:, None], (map[:-1] + map[1:]) / 2).to(torch.uint8)
scales = near.flatten()[: state.absmax.numel()].contiguous()

theirs, of_theirs = F.quantize_blockwise(state.absmax - mean, code=map, blocksize=256)
differing = (theirs != scales).sum().item()
assert torch.equal(of_theirs.absmax, of_scales) and differing <= scales.numel() // 100, differing
nested = F.QuantState(absmax=of_scales, code=map, blocksize=256, dtype=torch.float32)
nested = F.QuantState(
    absmax=scales, shape=weight.shape, dtype=torch.float32, blocksize=64, code=state.code, quant_type="nf4", offset=mean, state2=nested
)
values = F.dequantize_4bit(codes, nested)
# Written in four bytes fewer for each value: the test has the formula, and this is it.
pairs = torch.stack([codes.flatten() >> 4, codes.flatten() & 15], dim=1).flatten().long()
of_block = map[scales.long()] * of_scales.repeat_interleave(256)[: scales.numel()] + mean
formula = state.code[pairs] * of_block.repeat_interleave(64)[: pairs.numel()]
assert torch.equal(formula.reshape(SHAPE), values)

made = {"codes": codes.flatten(), "scales": scales, "of_scales": of_scales, "mean": mean.reshape(1), "numbers": state.code, "map": map}
print(f"figure: nf4/scales_differing_from_bitsandbytes_cpu = {differing} of {scales.numel()} scales")
if "--write" in sys.argv[1:]:
    FILE.parent.mkdir(exist_ok=True)
    save_file(made, FILE)
else:
    kept = load_file(FILE)
    wrong = [name for name in made | kept if name not in kept or name not in made or not torch.equal(made[name], kept[name])]
    if wrong:
        sys.exit(f"{FILE.name}: bitsandbytes makes others of {', '.join(wrong)}")
