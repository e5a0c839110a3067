#!/usr/bin/env python3
"""Dry runs of `finetune` with models of real shapes, whose weights are holes in files, beside `headroom estimate`.

    python3 scripts/dry-run-models.py HEADROOM FINETUNE

HEADROOM is built with `--features dry-run`, FINETUNE with `--features cuda`. Prints a table, the largest difference of the two, and for the model
of 8 billion parameters the seconds to the end of the first step and of each further one, and the most memory of the host. It needs Linux."""

import json
import os
import pathlib
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "attention_bias": False}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu"}


def shape(family, width, hidden, layers, heads, keys, vocabulary, theta, tied, head=None, **more):
    sizes = {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
             "num_key_value_heads": keys, "vocab_size": vocabulary, "rope_theta": theta, "tie_word_embeddings": tied,
             "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
    return family | sizes | ({"head_dim": head} if head else {}) | more


# As the models' config.json have them.
MODELS = {
    "Llama-3.1-8B": shape(LLAMA, 4096, 14336, 32, 32, 8, 128256, 500000.0, False),
    "SmolLM2-135M": shape(LLAMA, 576, 1536, 30, 9, 3, 49152, 100000.0, True),
    "Qwen3-0.6B": shape(QWEN3, 1024, 3072, 28, 16, 8, 151936, 1e6, True, head=128),
    "Qwen2.5-1.5B": shape(QWEN2, 1536, 8960, 28, 12, 2, 151936, 1e6, True),
}
# Model, tokens, batch, options of `finetune`, options of `headroom estimate`, and the place of its way.
CASES = [
    ("Llama-3.1-8B", 4096, 1, [], ["--lora-rank", "16"], 0),
    ("Llama-3.1-8B", 4096, 1, ["--recompute", "always"], ["--lora-rank", "16"], 2),
    ("SmolLM2-135M", 1024, 8, ["--full"], ["--master-weights"], 0),
    ("SmolLM2-135M", 1024, 8, ["--full", "--moments", "8bit", "--recompute", "always"], ["--moments", "8bit", "--master-weights"], 2),
    ("Qwen3-0.6B", 2048, 2, ["--full"], ["--master-weights"], 0),
    ("Qwen2.5-1.5B", 1024, 4, ["--lora-rank", "8"], ["--lora-rank", "8"], 0),
]


def tensors(config):
    width, hidden = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    yield "model.norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{block}{norm}.weight", (width,)
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{block}self_attn.{name}_proj.weight", (size, width)
            if config["model_type"] == "qwen2":
                yield f"{block}self_attn.{name}_proj.bias", (size,)
            if config["model_type"] == "qwen3" and name != "v":
                yield f"{block}self_attn.{name}_norm.weight", (head,)
        yield f"{block}self_attn.o_proj.weight", (width, queries)
        yield f"{block}mlp.gate_proj.weight", (hidden, width)
        yield f"{block}mlp.up_proj.weight", (hidden, width)
        yield f"{block}mlp.down_proj.weight", (width, hidden)


def make(folder, config, tokenizer):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer)
    header, end = {}, 0
    for name, dims in tensors(config):
        size = 2
        for dim in dims:
            size *= dim
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def dry_run(headroom, program):
    """The answer, and when each step ended, in seconds."""
    began, ends = time.monotonic(), []
    command = [headroom, "dry-run", "--json", "--gpu", "B300", "--", *program]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = []
    # With --json the program's output goes to standard error.
    for line in running.stderr:
        said.append(line)
        if re.match(r"step \d+: loss", line):
            ends.append(time.monotonic() - began)
    answer = running.stdout.read()
    if running.wait() != 0:
        sys.exit("".join(said[-20:]) + answer[-2000:])
    return json.loads(answer), ends


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    headroom, finetune = sys.argv[1:]
    worst, rows = 0.0, []
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        libraries = {**os.environ, "PATH": os.environ["PATH"]}
        demonstration = [headroom, "dry-run", "--gpu", "24GiB", "--", finetune, "--device", "cuda:0", "--budget", "1GiB", "--full", "--steps", "1", "--output", str(work / "small")]
        subprocess.run(demonstration, check=True, env=libraries, stdout=subprocess.DEVNULL)
        tokenizer = (work / "small/untrained/tokenizer.json").read_text()
        text = work / "text.txt"
        sources = sorted(pathlib.Path("docs").rglob("*.md"))
        text.write_text("\n".join(file.read_text() for file in sources)[:200_000])
        for number, (model, tokens, batch, options, estimate, way) in enumerate(CASES):
            folder = work / model
            if not folder.exists():
                make(folder, MODELS[model], tokenizer)
            program = [finetune, "--device", "cuda:0", "--budget", "250GiB", "--model", str(folder), "--context", str(tokens), "--batch", str(batch)]
            program += ["--steps", "6", "--sample", "1", "--output", str(work / f"out-{number}"), *options, str(text)]
            answer, ends = dry_run(headroom, program)
            if number == 0:
                host = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
                first, others = ends[0], [after - before for before, after in zip(ends, ends[1:])]
            command = [headroom, "estimate", str(folder), "--json", "--memory", "1TiB", "--length", str(tokens), "--batch", str(batch), *estimate]
            estimated = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            expected = estimated["micro_batch"]["ways"][way]["peak"]
            peak = answer["peak"]["tensor_bytes"]
            percent = 100 * (expected - peak) / peak
            worst = max(worst, abs(percent))
            rows.append(f"{model}, {batch} x {tokens} {' '.join(options)}: {peak / 2**30:.2f} GiB, estimated {expected / 2**30:.2f} ({percent:+.1f} %)")
            print(rows[-1], flush=True)
    print(f"figure: dry_run/seconds_first_step_8b = {first:.1f} s")
    print(f"figure: dry_run/seconds_a_step_8b = {statistics.median(others):.2f} s")
    print(f"figure: dry_run/host_mib_8b = {host:.0f} MiB")
    print(f"figure: estimate/worst_percent = {worst:.1f} %")


main()
