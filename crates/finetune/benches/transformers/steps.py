"""Takes steps of transformers and PEFT as `steps` of main.rs does: FOLDER WHAT BATCH TIME, a step for each line of standard input."""
import os
import sys
import time as clock

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def peak():
    with open("/proc/self/status") as status:
        return next(line.split()[1] for line in status if line.startswith("VmHWM:"))


def main():
    folder, what, samples, time = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    few_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                  bnb_4bit_compute_dtype=torch.float32)
    quantized = {"quantization_config": few_bits, "device_map": "cpu"} if what.startswith("nf4") else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **quantized)
    if not what.startswith("full"):
        model = PeftModel.from_pretrained(model, f"{folder}/adapter", is_trainable=True)
    if what.endswith("-recomputing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    vocabulary = model.config.vocab_size
    text = torch.arange(samples * (time + 1), dtype=torch.int64) * 7919 % vocabulary
    text = text.reshape(samples, time + 1)
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    for _ in sys.stdin:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        began = clock.perf_counter()
        # `shift_labels`: the targets, already moved by one.
        output = model(input_ids=tokens, labels=targets, shift_labels=targets, use_cache=False)
        output.loss.backward()
        missing = any(p.grad is None for p in model.parameters() if p.requires_grad)
        model.zero_grad(set_to_none=True)
        del output
        seconds = clock.perf_counter() - began
        assert not missing, "a parameter has no gradient"
        print(seconds, peak(), flush=True)


main()
