"""How many operators PyTorch, eager, executes for the steps of counts/mod.rs: forward and backward pass, then the update where there is one. Nothing
is computed: tensors have shapes alone. Each operator is counted as it is dispatched behind autograd; views, which execute nothing, and allocations
are left out, and an operator may be several kernels. The device is the CPU, where PyTorch composes RMSNorm of others; the update is of lists of
tensors, as on a GPU. Usage: python3 torch_counts.py"""

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "cpu"
# They return their argument, or memory that nothing has written, or read counters of steps, which lie on the host.
NOTHING = {"detach", "alias", "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "_local_scalar_dense"}
LIBRARY = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.by_name = {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        space, name = function._schema.name.split("::")
        returns = function._schema.returns
        is_view = bool(returns) and all(it.alias_info is not None and not it.alias_info.is_write for it in returns)
        if space == "aten" and not is_view and name not in NOTHING:
            self.by_name[name] = self.by_name.get(name, 0) + 1
        return function(*arguments, **(options or {}))


def tensor(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device=DEVICE).requires_grad_()


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Llama(torch.nn.Module):
    """A layer of Llama-3-8B, with adapters beside its weights if asked for."""

    HEADS, KEY_HEADS, WIDTH, HIDDEN, HEAD = 32, 8, 4096, 14336, 128

    def __init__(self, rank=None):
        super().__init__()
        keys = self.KEY_HEADS * self.HEAD
        shapes = [(self.WIDTH, self.WIDTH), (keys, self.WIDTH), (keys, self.WIDTH), (self.WIDTH, self.WIDTH)]
        shapes += [(2 * self.HIDDEN, self.WIDTH), (self.WIDTH, self.HIDDEN)]
        self.weights = [tensor(*shape) for shape in shapes]
        self.norms = [tensor(self.WIDTH) for _ in range(2)]
        self.adapters = [(tensor(rank, inputs, dtype=torch.float32), tensor(outputs, rank, dtype=torch.float32)) for outputs, inputs in shapes] if rank else None
        if rank:
            for frozen in self.weights + self.norms:
                frozen.requires_grad_(False)
        self.angles = torch.empty(4096, self.HEAD // 2, dtype=torch.bfloat16, device=DEVICE)

    def trained(self):
        return [each for pair in self.adapters for each in pair] if self.adapters else self.weights + self.norms

    def linear(self, number, x):
        y = F.linear(x, self.weights[number])
        if self.adapters is None:
            return y
        down, up = self.adapters[number]
        return y + (F.linear(F.linear(x.float(), down), up) * 2.0).to(y.dtype)

    def turned(self, x):
        half = torch.cat((-x[..., self.HEAD // 2 :], x[..., : self.HEAD // 2]), -1)
        angles = torch.cat((self.angles, self.angles), -1)
        return x * angles + half * angles

    def forward(self, x):
        y = F.rms_norm(x, (self.WIDTH,), self.norms[0], 1e-5)
        q, k, v = (self.linear(number, y).unflatten(-1, (-1, self.HEAD)).transpose(1, 2) for number in range(3))
        x = x + self.linear(3, attend(self.turned(q), self.turned(k), v).transpose(1, 2).flatten(2))
        y = F.rms_norm(x, (self.WIDTH,), self.norms[1], 1e-5)
        gate, up = self.linear(4, y).chunk(2, -1)
        return x + self.linear(5, F.silu(gate) * up)


class Text(torch.nn.Module):
    """The model of `train_text`."""

    def __init__(self, width, heads, layers, context):
        super().__init__()
        nn, self.heads = torch.nn, heads
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            block = nn.ModuleDict({"norm": nn.LayerNorm(width), "other": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width)})
            block.update({"out": nn.Linear(width, width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)})
            self.blocks.append(block)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=DEVICE))
        for block in self.blocks:
            q, k, v = block["qkv"](block["norm"](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + block["out"](attend(q, k, v).transpose(1, 2).flatten(2))
            x = x + block["down"](F.relu(block["up"](block["other"](x))))
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


class Residual(torch.nn.Module):
    """The first block of a ResNet-18."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.convolutions = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.convolutions[0](x)))
        return F.relu(x + self.norms[1](self.convolutions[1](y)))


def report(name, run):
    with Count() as count:
        run()
    library = sum(number for operator, number in count.by_name.items() if operator in LIBRARY)
    print(f"{name}: {sum(count.by_name.values()) - library} operators, {library} products")


def step(name, loss, parameters, updates=True):
    def run():
        loss().backward()

    run()
    for parameter in parameters:
        parameter.grad = None
    report(name, run)
    if updates:
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        optimizer.step()
        report(f"{name}, its update", optimizer.step)


def chained(x):
    for _ in range(64):
        x = F.silu(x)
    return x.sum()


with FakeTensorMode(allow_non_fake_inputs=True), torch.device(DEVICE):
    text = Text(384, 6, 6, 256)
    ids = torch.zeros(64, 256, dtype=torch.long)
    step("transformer of 10.7 million", lambda: text(ids), list(text.parameters()))
    for name, rank in (("layer of Llama", None), ("layer of Llama, with LoRA", 16)):
        layer, x = Llama(rank), tensor(1, 4096, 4096)
        step(name, lambda: layer(x).sum(), layer.trained(), updates=rank is not None)
    q, k, v = (tensor(1, heads, 4096, 128) for heads in (32, 8, 8))
    step("its attention alone", lambda: attend(q, k, v).sum(), [q, k, v], updates=False)
    block, x = Residual(), tensor(32, 64, 56, 56, dtype=torch.float32)
    step("block of a ResNet", lambda: block(x).sum(), list(block.parameters()))
    x = tensor(4096, dtype=torch.float32)
    step("64 SiLUs", lambda: chained(x), [x], updates=False)
