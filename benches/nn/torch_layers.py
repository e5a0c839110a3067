#!/usr/bin/env python3
"""The model and the operations of benches/nn in PyTorch, on the CPU with 2 threads: MiB for each sample, a step's time, and the bytes
that autograd keeps for each operation. It needs PyTorch; `cargo bench --bench nn` does not run it.

    python3 benches/nn/torch_layers.py
"""

import statistics
import time

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

TIME, WIDTH, HIDDEN, LAYERS, HEADS, KEY_HEADS, VOCABULARY = 64, 64, 768, 5, 8, 4, 4096
HEAD = WIDTH // HEADS
MIB = 1 << 20


def weight(*shape):
    return torch.nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


class Block(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused = fused
        self.norm, self.hidden_norm = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.q, self.out = weight(WIDTH, WIDTH), weight(WIDTH, WIDTH)
        self.k, self.v = weight(KEY_HEADS * HEAD, WIDTH), weight(KEY_HEADS * HEAD, WIDTH)
        self.gate, self.up, self.down = weight(HIDDEN, WIDTH), weight(HIDDEN, WIDTH), weight(WIDTH, HIDDEN)

    def attend(self, x, cos, sin):
        samples, steps, _ = x.shape

        def rotate(x):
            a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

        q = rotate(F.linear(x, self.q).view(samples, steps, HEADS, HEAD)).transpose(1, 2)
        k = rotate(F.linear(x, self.k).view(samples, steps, KEY_HEADS, HEAD)).transpose(1, 2)
        v = F.linear(x, self.v).view(samples, steps, KEY_HEADS, HEAD).transpose(1, 2)
        k, v = (t.repeat_interleave(HEADS // KEY_HEADS, 1) for t in (k, v))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / HEAD**0.5
            ahead = torch.ones(steps, steps, dtype=torch.bool).triu(1)
            mixed = scores.masked_fill(ahead, float("-inf")).softmax(-1) @ v
        return F.linear(mixed.transpose(1, 2).reshape(samples, steps, WIDTH), self.out)

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm(x), cos, sin)
        normed = self.hidden_norm(x)
        return x + F.linear(F.silu(F.linear(normed, self.gate)) * F.linear(normed, self.up), self.down)


class Llama(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(fused) for _ in range(LAYERS))
        self.norm, self.head = torch.nn.RMSNorm(WIDTH), weight(VOCABULARY, WIDTH)
        rates = 10_000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = (torch.arange(TIME)[:, None] * rates)[:, None]
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, tokens, following):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(F.linear(self.norm(x), self.head).flatten(0, 1), following.flatten())


def texts(samples):
    tokens = torch.arange(samples * TIME + 1) * 31 % 4093
    return tokens[:-1].view(samples, TIME), tokens[1:].view(samples, TIME)


def peak(model, samples):
    """The peak of a step above what was allocated before, in bytes, from the profiler's record of all allocations."""
    model.zero_grad(set_to_none=True)
    tokens, following = texts(samples)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        model(tokens, following).backward()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return highest


def kept(name, operation, *inputs):
    """Bytes of the tensors that autograd saves, without the inputs themselves, and of the output."""
    storages = {}

    def save(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        output = operation(*inputs)
    storages[output.untyped_storage().data_ptr()] = output.untyped_storage().nbytes()
    for tensor in inputs:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    print(f"kept: {name} = {sum(storages.values()) / MIB:.3f} MiB, inputs {[tuple(t.shape) for t in inputs]}")


def main():
    torch.set_num_threads(2)
    print(f"PyTorch {torch.__version__}")
    for name, fused in (("eager", False), ("scaled_dot_product_attention", True)):
        model = Llama(fused)
        peak(model, 8)
        slope = (peak(model, 24) - peak(model, 8)) / 16 / MIB
        tokens, following = texts(8)
        seconds = []
        for _ in range(41):
            model.zero_grad(set_to_none=True)
            began = time.perf_counter()
            model(tokens, following).backward()
            seconds.append(time.perf_counter() - began)
        print(f"llama2-c, {name}: {slope:.2f} MiB for each sample, {statistics.median(seconds) * 1e3:.1f} ms for a step of 8")

    def var(*shape):
        return torch.randn(*shape, requires_grad=True)

    x, weights, bias = var(8, 256, 1024), var(1024), var(1024)
    kept("softmax", lambda x: x.softmax(-1), var(4, 8, 256, 256))
    kept("rms_norm", lambda x, w: F.rms_norm(x, (1024,), w), x, weights)
    kept("layer_norm", lambda x, w, b: F.layer_norm(x, (1024,), w, b), x, weights, bias)
    kept("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), var(8, 64, 32, 32), var(64), var(64))
    kept("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, True), var(8, 64, 32, 32), var(64), var(64))
    kept("linear with bias", F.linear, x, var(1024, 1024), bias)
    kept("swiglu", lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], var(8, 256, 2048))
    kept("gelu", F.gelu, x)
    kept("silu", F.silu, x)
    kept("dropout", lambda x: F.dropout(x, 0.1), x)
    kept("cross_entropy", lambda x: F.cross_entropy(x, torch.arange(2048)), var(2048, 4096))
    q, k, v = var(4, 8, 512, 64), var(4, 8, 512, 64), var(4, 8, 512, 64)
    kept("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)

    def rope(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    angles = torch.randn(512, 32)
    kept("rope", rope, var(4, 8, 512, 64), angles.cos(), angles.sin())


if __name__ == "__main__":
    main()
