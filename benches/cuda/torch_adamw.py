"""Times PyTorch's AdamW(fused=True): lists of shapes as JSON on standard input, the device as the first argument, the number of
rounds as the second. Prints the median seconds of a step for each list."""

import json
import statistics
import sys
import time

import torch

device, rounds = sys.argv[1], int(sys.argv[2])


def wait():
    if device.startswith("cuda"):
        torch.cuda.synchronize()


for shapes in json.load(sys.stdin):
    parameters = [torch.nn.Parameter(torch.randn(shape, device=device) * 0.1) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 0.01
    optimizer = torch.optim.AdamW(parameters, fused=True)
    seconds = []
    for turn in range(rounds + 3):
        wait()
        began = time.perf_counter()
        optimizer.step()
        wait()
        seconds.append(time.perf_counter() - began)
    print(statistics.median(seconds[3:]))
