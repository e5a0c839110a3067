"""Writes tables.safetensors: what PyTorch's optimizers make of fixed random gradients, step by step.

Made with Python 3.11, torch 2.15.0, safetensors 0.8.0 and numpy 2.4.6, on a CPU:

    pip install torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
    python3 make_tables.py

With the same versions the file comes out the same byte for byte; another kind of CPU may change last bits.

Tensors:

    CASE/parameter/I      parameter I before the first step
    CASE/gradient/STEP/I  its gradient in step STEP, counted from 1; absent where it gets none
    CASE/result/STEP/I    the parameter after that step
    CASE/state/NAME/I     the optimizer's state after the last step, under PyTorch's name; absent where there is none
    CASE/norm/STEP        norm clipping: the total norm of the gradients before clipping, f64
    CASE/scale/STEP       loss scaling: the scale after the step's update, f64
    CASE/skipped/STEP     loss scaling: 1 where the step was skipped, i64
    CASE/master/STEP/I    mixed precision: the f32 master weight that result/STEP/I was rounded from
    CASE/lr               schedules: the learning rate of each step, counted from 0, f64

Gradients are stored as they come in: before clipping, and multiplied by the loss scale where there is one.

The file's metadata has a line of `key=value` words for each case, and PyTorch's version as `made_with`.
"""

import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

SHAPES = [(3, 5), (7,), (), (2, 3, 4)]
STEPS = 6
DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

# (step, parameter) pairs without a gradient: parameter 1 starts late and pauses, parameter 2 never gets one.
MISSING = {(1, 1), (3, 1)} | {(step, 2) for step in range(1, STEPS + 1)}

tensors = {}
metadata = {"made_with": torch.__version__.split("+")[0]}


# Random input


def random_case(name, shapes=SHAPES, steps=STEPS):
    """Parameters and gradients (by step, then parameter) in f64.

    The seed comes from the name, so that a new case leaves the others as they are.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    parameters = [torch.tensor(rng.standard_normal(shape)) for shape in shapes]
    gradients = []
    for step in range(1, steps + 1):
        row = []
        for i, shape in enumerate(shapes):
            gradient = rng.standard_normal(shape)
            spread = 10.0 ** rng.uniform(-4.0, 2.0, shape)
            gradient = np.where(rng.random(shape) < 0.5, gradient * spread, gradient)
            gradient = np.where(rng.random(shape) < 0.08, 0.0, gradient)
            if i == 0:
                gradient[0, 0] = 0.0  # never a gradient other than zero, so its moments stay zero
            if i == 1 and step == 2:
                gradient[:] = 0.0
            row.append(torch.tensor(gradient))
        gradients.append(row)
    return parameters, gradients


def without(gradients, missing):
    return [[None if (step, i) in missing else gradient for i, gradient in enumerate(row)]
            for step, row in enumerate(gradients, 1)]


def scaled(row, factors):
    return [value * factor for value, factor in zip(row, factors)]


def cast(row, dtype):
    """Copies in the dtype."""
    return [None if value is None else value.detach().to(dtype, copy=True) for value in row]


# Output


def put(name, value):
    assert name not in tensors, name
    tensors[name] = value.detach().clone().contiguous()


def put_all(prefix, values):
    for i, value in enumerate(values):
        if value is not None:
            put(f"{prefix}/{i}", value)


def put_state(case, optimizer, parameters):
    for i, parameter in enumerate(parameters):
        for name, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                put(f"{case}/state/{name}/{i}", value)


def word(value):
    """Numbers by repr(), so that they read back to the very same f64."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(word(one) for one in value)
    return value if isinstance(value, str) else repr(value)


def describe(case, **words):
    assert case not in metadata, case
    metadata[case] = " ".join(f"{key}={word(value)}" for key, value in words.items())


def write(path):
    """Writes the file, with the header's keys in order: safetensors itself promises none for the metadata."""
    data = save(tensors, metadata)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(dict(sorted(header.items())), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


# Optimizers. Each function takes the parameters and one set of hyper-parameters, named as in the metadata.


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023, Symbolic Discovery of Optimization Algorithms (arXiv 2302.06675)."""

    def __init__(self, parameters, lr, beta1, beta2, weight_decay):
        super().__init__(parameters, {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay})
        self.zero_updates = 0

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, beta1, beta2, weight_decay = (group[key] for key in ("lr", "beta1", "beta2", "weight_decay"))
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m, g = state["exp_avg"], p.grad
                c = beta1 * m + (1 - beta1) * g
                # A sum that cancels almost wholly has a sign that hangs on rounding, which no other
                # implementation could be asked to repeat.
                size = (beta1 * m).abs() + ((1 - beta1) * g).abs()
                assert bool(((c.abs() > 1e-4 * size) | (size == 0)).all())
                self.zero_updates += int((c == 0).sum())
                p.sub_(lr * (torch.sign(c) + weight_decay * p))
                state["exp_avg"] = beta2 * m + (1 - beta2) * g


def make_adam(cls):
    def make(parameters, lr, beta1, beta2, eps, weight_decay):
        return cls(parameters, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay,
                   foreach=False, fused=False)
    return make


def make_sgd(parameters, lr, momentum, dampening, nesterov, weight_decay):
    return SGD(parameters, lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov,
               weight_decay=weight_decay, foreach=False, fused=False)


MAKE = {"adamw": make_adam(AdamW), "adam": make_adam(Adam), "sgd": make_sgd, "lion": Lion}

# PyTorch's defaults, and those of the paper for Lion.
DEFAULTS = {
    "adamw": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "adam": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "sgd": {"lr": 0.05, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0},
    "lion": {"lr": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
}


def hyper_parameters(optimizer, changes):
    values = {**DEFAULTS[optimizer], **changes}
    assert values.keys() == DEFAULTS[optimizer].keys(), changes
    return values


# Cases


def case(name, data=None, groups=None, clip_norm=None, clip_value=None, **changes):
    """One optimizer, once in f64 and once in f32. `groups` gives lr and weight decay by parameter."""
    optimizer_name = name.split(".")[0]
    parameters, gradients = data or random_case(name)
    for dtype in ("f64", "f32"):
        values = hyper_parameters(optimizer_name, changes)
        full = f"{name}.{dtype}"
        words = {"optimizer": optimizer_name, "dtype": dtype, "steps": len(gradients), "parameters": len(parameters),
                 **values}
        live = cast(parameters, DTYPES[dtype])
        optimizer = MAKE[optimizer_name](live, **values)
        if groups is not None:
            lrs, weight_decays = groups
            words |= {"lrs": lrs, "weight_decays": weight_decays}
            kinds = dict.fromkeys(zip(lrs, weight_decays))
            assert next(iter(kinds)) == (values["lr"], values["weight_decay"])
            split = [{"params": [p for p, *own in zip(live, lrs, weight_decays) if tuple(own) == kind],
                      "lr": kind[0], "weight_decay": kind[1]} for kind in kinds]
            optimizer = MAKE[optimizer_name](split, **values)
        if clip_norm is not None:
            words["clip_norm"] = clip_norm
        if clip_value is not None:
            words["clip_value"] = clip_value
        describe(full, **words)

        put_all(f"{full}/parameter", live)
        for step, row in enumerate(gradients, 1):
            row = cast(row, DTYPES[dtype])
            put_all(f"{full}/gradient/{step}", row)
            for p, gradient in zip(live, row):
                p.grad = gradient
            if clip_norm is not None:
                norm = clip_grad_norm_(live, clip_norm, foreach=False)
                put(f"{full}/norm/{step}", norm.double())
            if clip_value is not None:
                clip_grad_value_(live, clip_value, foreach=False)
            optimizer.step()
            put_all(f"{full}/result/{step}", live)
        put_state(full, optimizer, live)
        if optimizer_name == "lion":
            assert optimizer.zero_updates > 0


def missing_case(name, **changes):
    parameters, gradients = random_case(name)
    case(name, data=(parameters, without(gradients, MISSING)), **changes)


def clip_cases(optimizer, **changes):
    for name, clip in [("clip_norm", {"clip_norm": 0.5}), ("clip_norm_idle", {"clip_norm": 1e6}),
                       ("clip_value", {"clip_value": 0.1})]:
        parameters, gradients = random_case(f"{optimizer}.{name}")
        # One step that is small enough to stay unclipped.
        gradients[3] = scaled(gradients[3], [1e-4] * len(parameters))
        case(f"{optimizer}.{name}", data=(parameters, gradients), **clip, **changes)


def loss_scale_case(optimizer_name, **changes):
    """A GradScaler around the optimizer, with gradients that overflow in steps 2, 3 and 8."""
    name = f"{optimizer_name}.loss_scale"
    full, steps = f"{name}.f32", 12
    values = hyper_parameters(optimizer_name, changes)
    scaler_values = {"init_scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3}
    parameters, gradients = random_case(name, steps=steps)
    gradients[1][0][1, 2] = math.inf
    gradients[2][3][1, 0, 3] = math.nan
    gradients[7][2].fill_(-math.inf)
    describe(full, optimizer=optimizer_name, dtype="f32", steps=steps, parameters=len(parameters), **values,
             **scaler_values)

    live = cast(parameters, torch.float32)
    optimizer = MAKE[optimizer_name](live, **values)
    scaler = torch.amp.GradScaler("cpu", **scaler_values)
    put_all(f"{full}/parameter", live)
    for step, row in enumerate(gradients, 1):
        for p, gradient in zip(live, cast(row, torch.float32)):
            # The scale is a power of two, so this is exactly what backward of the scaled loss gives.
            p.grad = scaler.scale(gradient)
        put_all(f"{full}/gradient/{step}", [p.grad for p in live])
        before = cast(live, torch.float32)
        scaler.step(optimizer)
        scaler.update()
        skipped = step in (2, 3, 8)
        assert skipped == all(torch.equal(p, old) for p, old in zip(live, before))
        put_all(f"{full}/result/{step}", live)
        put(f"{full}/scale/{step}", torch.tensor(scaler.get_scale(), dtype=torch.float64))
        put(f"{full}/skipped/{step}", torch.tensor(int(skipped)))
    put_state(full, optimizer, live)


def assert_rounds_clearly(value, half):
    """A value at the middle of two halves would round by its last bits, which differ between implementations."""
    bits = value.view(torch.int32)
    assert all(torch.equal((bits + shift).view(torch.float32).to(half), value.to(half)) for shift in (-4, 4))


def half_case(kind, dtype, seed_word):
    """AdamW on half-precision parameters with f32 moments and gradients.

    `master` keeps f32 weights between the steps, and rounds them to give the parameters; `half` has nothing but the
    parameters, so what a step's rounding takes away is lost. The seed word picks numbers that round clearly.
    """
    full, half = f"adamw.{kind}.{dtype}", DTYPES[dtype]
    values = hyper_parameters("adamw", {"lr": 3e-3, "weight_decay": 0.1})
    parameters, gradients = random_case(f"{full} {seed_word}")
    describe(full, optimizer="adamw", dtype=dtype, steps=len(gradients), parameters=len(parameters), **values)

    results = cast(parameters, half)
    live = cast(results, torch.float32)
    optimizer = MAKE["adamw"](live, **values)
    put_all(f"{full}/parameter", results)
    for step, row in enumerate(gradients, 1):
        row = cast(row, torch.float32)
        put_all(f"{full}/gradient/{step}", row)
        for p, gradient, result in zip(live, row, results):
            p.grad = gradient
            if kind == "half":
                p.copy_(result)
        optimizer.step()
        for p in live:
            assert_rounds_clearly(p, half)
        results = cast(live, half)
        put_all(f"{full}/result/{step}", results)
        if kind == "master":
            put_all(f"{full}/master/{step}", live)
    put_state(full, optimizer, live)


def schedule_cases():
    def put_schedule(name, lrs, **words):
        describe(f"schedule.{name}", schedule=name, steps=len(lrs), **words)
        put(f"schedule.{name}/lr", torch.tensor(lrs, dtype=torch.float64))

    def run(steps, lr, make):
        optimizer = SGD([torch.zeros(())], lr=lr)
        scheduler, lrs = make(optimizer), []
        for _ in range(steps):
            lrs.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return lrs

    lr, t_max, eta_min = 0.1, 50, 0.001
    # PyTorch's cosine rises again after t_max; here it stays at the bottom.
    lrs = run(t_max, lr, lambda optimizer: CosineAnnealingLR(optimizer, t_max, eta_min)) + [eta_min] * 10
    put_schedule("cosine", lrs, lr=lr, t_max=t_max, eta_min=eta_min)

    step_size, gamma = 10, 0.5
    lrs = run(35, lr, lambda optimizer: StepLR(optimizer, step_size, gamma))
    put_schedule("step", lrs, lr=lr, step_size=step_size, gamma=gamma)

    # By formula: t_max counts the warm-up's steps too.
    warm_up = 10
    lrs = [lr * (step + 1) / (warm_up + 1) for step in range(warm_up)]
    for step in range(warm_up, t_max):
        progress = (step - warm_up) / (t_max - warm_up)
        lrs.append(eta_min + (lr - eta_min) * (1 + math.cos(math.pi * progress)) / 2)
    lrs += [eta_min] * 10
    put_schedule("cosine_warm_up", lrs, lr=lr, warm_up=warm_up, t_max=t_max, eta_min=eta_min)


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    case("adamw.defaults")
    case("adamw.strong", lr=0.05, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.3)
    case("adamw.no_decay", weight_decay=0.0)
    missing_case("adamw.missing")
    case("adamw.groups", groups=([0.01, 0.001, 0.001, 0.01], [0.1, 0.0, 0.0, 0.1]), lr=0.01, weight_decay=0.1)

    case("adam.defaults")
    case("adam.weight_decay", weight_decay=0.1)
    case("adam.betas", lr=0.01, beta1=0.7, beta2=0.9)

    case("sgd.plain")
    case("sgd.momentum", momentum=0.9)
    case("sgd.dampening", momentum=0.9, dampening=0.5)
    case("sgd.nesterov", momentum=0.9, nesterov=True)
    case("sgd.weight_decay", momentum=0.9, weight_decay=0.1)
    # A parameter's first gradient becomes its momentum buffer undamped, whichever step that is.
    missing_case("sgd.missing", momentum=0.9, dampening=0.5)

    case("lion.defaults")
    case("lion.strong", lr=0.01, beta1=0.95, beta2=0.98, weight_decay=0.5)

    clip_cases("adamw")
    clip_cases("sgd", momentum=0.9)

    loss_scale_case("sgd", momentum=0.9)
    loss_scale_case("adamw")

    half_case("master", "bf16", "a")
    half_case("master", "f16", "a")
    half_case("half", "bf16", "a")
    half_case("half", "f16", "a")

    schedule_cases()
    write(Path(__file__).with_name("tables.safetensors"))


if __name__ == "__main__":
    main()
