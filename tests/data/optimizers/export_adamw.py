"""Takes the state of PyTorch's AdamW out of a training run, as safetensors under the parameters' names.

`export` is what a PyTorch user would call on their own model. Run as a script, this file makes an example of it
with a tiny model: pytorch_adamw.safetensors is the exported state, and pytorch_adamw_expected.safetensors says how
PyTorch's own training goes on from there:

    before/NAME         parameters at the time of the export
    gradient/STEP/NAME  gradients of the next steps, counted from 1
    after/STEP/NAME     parameters after each of them

Made with Python 3.11, torch 2.15.0, safetensors 0.8.0 and numpy 2.4.6, on a CPU:

    pip install torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
    python3 export_adamw.py
"""

from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import save_file


def export(model, optimizer, path):
    """Writes NAME.exp_avg, NAME.exp_avg_sq and NAME.step of each parameter that has been stepped."""
    tensors = {}
    for name, parameter in model.named_parameters():
        # A parameter that never had a gradient has no state.
        for key, value in optimizer.state.get(parameter, {}).items():
            if key in ("exp_avg", "exp_avg_sq", "step"):
                tensors[f"{name}.{key}"] = value.detach().cpu().contiguous()
    save_file(tensors, path)


def main():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(OrderedDict(
        hidden=torch.nn.Linear(4, 8),
        activation=torch.nn.ReLU(),
        out=torch.nn.Linear(8, 2),
    ))
    hyper_parameters = "lr=0.01 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.1"
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)

    def train_step():
        inputs, targets = torch.randn(16, 4), torch.randn(16, 2)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    for _ in range(5):
        train_step()
    folder = Path(__file__).parent
    export(model, optimizer, folder / "pytorch_adamw.safetensors")

    expected = {}

    def record(prefix, gradients=False):
        for name, parameter in model.named_parameters():
            value = parameter.grad if gradients else parameter
            expected[f"{prefix}/{name}"] = value.detach().clone().contiguous()

    record("before")
    for step in range(1, 4):
        train_step()
        record(f"gradient/{step}", gradients=True)
        record(f"after/{step}")
    # One key only: safetensors promises no order for more, and the file should come out the same each time.
    save_file(expected, folder / "pytorch_adamw_expected.safetensors", {"adamw": hyper_parameters})


if __name__ == "__main__":
    main()
