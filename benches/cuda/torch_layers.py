"""The operations of layers.rs in PyTorch, forward and backward, eager: prints the median milliseconds and the peak in MiB above what
was allocated before, as figure lines. The device is the first argument, the number of rounds the second."""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

device, rounds = sys.argv[1], int(sys.argv[2])
TOKENS, WIDTH, HEADS, KEY_HEADS, HIDDEN, VOCABULARY = 4096, 4096, 32, 8, 14336, 128256
HEAD = WIDTH // HEADS


def var(*shape, dtype=torch.bfloat16):
    return (torch.randn(*shape, device=device) * 0.02).to(dtype).requires_grad_()


def measure(name, run, leaves):
    def step():
        for leaf in leaves:
            leaf.grad = None
        run()
        torch.cuda.synchronize()

    step()
    for leaf in leaves:
        leaf.grad = None
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    print(f"figure: gpu/{name}_torch_peak = {peak:.4f} MiB")
    print(f"figure: gpu/{name}_torch_milliseconds = {statistics.median(seconds) * 1e3:.4f} ms", flush=True)


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def language_model():
    width, heads, layers, context, samples = 384, 6, 6, 256, 64
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.down(F.relu(self.up(self.norms[1](x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(context, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            self.head = nn.Linear(width, 256)

        def forward(self, x):
            x = self.tokens(x) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = (torch.arange(samples * context, device=device) * 31 % 251).view(samples, context)

    def run():
        F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()

    measure("language_model", run, list(model.parameters()))


def main():
    for tokens in (1024, 4096, 16384):
        q, k, v = var(1, HEADS, tokens, HEAD), var(1, KEY_HEADS, tokens, HEAD), var(1, KEY_HEADS, tokens, HEAD)
        measure(f"attention_{tokens}", lambda: attend(q, k, v).sum().backward(), [q, k, v])
    x, weight, bias = var(TOKENS, WIDTH), var(WIDTH), var(WIDTH)
    measure("rms_norm", lambda: F.rms_norm(x, (WIDTH,), weight, 1e-5).sum().backward(), [x, weight])
    measure("layer_norm", lambda: F.layer_norm(x, (WIDTH,), weight, bias).sum().backward(), [x, weight, bias])
    halves = var(TOKENS, 2 * HIDDEN)

    def swiglu(x):
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    measure("swiglu", lambda: swiglu(halves).sum().backward(), [halves])
    del halves
    head = var(VOCABULARY, WIDTH)
    targets = torch.arange(TOKENS, device=device) * 31 % VOCABULARY
    measure("linear_cross_entropy", lambda: F.cross_entropy(F.linear(x, head), targets).backward(), [x, head])
    del head

    norms, few = [var(WIDTH), var(WIDTH)], KEY_HEADS * HEAD
    wq, wk, wv, wo = var(WIDTH, WIDTH), var(few, WIDTH), var(few, WIDTH), var(WIDTH, WIDTH)
    gate_up, down = var(2 * HIDDEN, WIDTH), var(WIDTH, HIDDEN)
    rates = 500_000.0 ** (-torch.arange(HEAD // 2, device=device) / (HEAD // 2))
    angles = torch.arange(TOKENS, device=device)[:, None] * rates
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    x = var(1, TOKENS, WIDTH)

    def rope(x):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def by_head(x, heads):
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def layer():
        normed = F.rms_norm(x, (WIDTH,), norms[0], 1e-5)
        q, k = rope(by_head(F.linear(normed, wq), HEADS)), rope(by_head(F.linear(normed, wk), KEY_HEADS))
        mixed = attend(q, k, by_head(F.linear(normed, wv), KEY_HEADS)).transpose(1, 2).flatten(2)
        y = x + F.linear(mixed, wo)
        return y + F.linear(swiglu(F.linear(F.rms_norm(y, (WIDTH,), norms[1], 1e-5), gate_up)), down)

    leaves = [x, *norms, wq, wk, wv, wo, gate_up, down]
    measure("llama_layer", lambda: layer().sum().backward(), leaves)
    del leaves
    language_model()


if __name__ == "__main__":
    main()
