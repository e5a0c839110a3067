#!/usr/bin/env python3
"""Predicts what fine-tuning a large model with a base in few bits takes on a card of 24 GiB, by dry runs of `finetune`.

    python3 scripts/eight-billion.py HEADROOM FINETUNE [--table]

HEADROOM is built with `--features dry-run`, FINETUNE with `--features cuda`. The model is a GGUF file with a header and a hole: linear layers and
embedding in Q4_K, the head in Q6_K, as llama.cpp's Q4_K_S has them. LoRA of rank 16 on all linear layers, one sample, f32 moments of AdamW.
With --table the script prints more models, cards and contexts, with `--offload`. It needs Linux, and some minutes for the
longest."""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
GIB = 2**30
# Types of ggml: their numbers, and the bytes of a block of so many elements.
TYPES = {"F32": (0, 4, 1), "Q4_K": (12, 144, 256), "Q6_K": (14, 210, 256)}


def llama(width, hidden, layers, heads, keys, vocabulary, theta):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
            "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": keys, "vocab_size": vocabulary, "rope_theta": theta, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}


# As the models' config.json have them.
MODELS = {
    "Llama-3.1-8B": llama(4096, 14336, 32, 32, 8, 128256, 500000.0),
    "Llama-2-7B": llama(4096, 11008, 32, 32, 32, 32000, 10000.0),
    "Llama-2-13B": llama(5120, 13824, 40, 40, 40, 32000, 10000.0),
}


def tensors(config):
    """Names, (rows, columns) and types."""
    width, hidden = config["hidden_size"], config["intermediate_size"]
    keys = width // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "token_embd.weight", (config["vocab_size"], width), "Q4_K"
    yield "output_norm.weight", (width,), "F32"
    yield "output.weight", (config["vocab_size"], width), "Q6_K"
    for layer in range(config["num_hidden_layers"]):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{norm}.weight", (width,), "F32"
        for name, shape in (("attn_q", (width, width)), ("attn_k", (keys, width)), ("attn_v", (keys, width)), ("attn_output", (width, width)),
                            ("ffn_gate", (hidden, width)), ("ffn_up", (hidden, width)), ("ffn_down", (width, hidden))):
            yield f"blk.{layer}.{name}.weight", shape, "Q4_K"


CARDS = ["RTX 3060", "T4", "RTX 4090"]


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def write_gguf(path, config):
    infos, end = b"", 0
    described = list(tensors(config))
    for name, shape, kind in described:
        number, size, block = TYPES[kind]
        infos += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", dim) for dim in reversed(shape))
        infos += struct.pack("<IQ", number, end)
        elements = 1
        for dim in shape:
            elements *= dim
        end += -(-(elements // block * size) // 32) * 32
    metadata = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    metadata += text("llama.rope.freq_base") + struct.pack("<If", 6, config["rope_theta"])
    header = b"GGUF" + struct.pack("<IQQ", 3, len(described), 2) + metadata + infos
    header += b"\0" * (-len(header) % 32)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + end)


class Runs:
    def __init__(self, headroom, finetune, work):
        self.headroom, self.finetune, self.work = headroom, finetune, work
        # A tokenizer, and a text that is long enough.
        small = [headroom, "dry-run", "--gpu", "24GiB", "--", finetune, "--device", "cuda:0", "--budget", "1GiB", "--full", "--steps", "1",
                 "--output", str(work / "small")]
        subprocess.run(small, check=True, stdout=subprocess.DEVNULL)
        self.tokenizer = (work / "small/untrained/tokenizer.json").read_text()
        sources = sorted(pathlib.Path("docs").rglob("*.md"))
        # Texts in one sample do not see each other: this is one.
        words = "\n".join(file.read_text() for file in sources)
        (work / "text.txt").write_text(words * 4)


    def model(self, name):
        folder = self.work / name
        if not folder.exists():
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(MODELS[name]))
            (folder / "tokenizer.json").write_text(self.tokenizer)
            write_gguf(folder / "model.gguf", MODELS[name])
        return folder

    def run(self, name, tokens, card, offload=None, more=(), cards=()):
        """Whether it fits; the peak of tensors, and what is outside them at most, in GiB; and the lines that the program printed."""
        folder, out = self.model(name), self.work / "out"
        shutil.rmtree(out, ignore_errors=True)
        program = [self.finetune, "--device", "cuda:0", "--model", str(folder), "--weights", str(folder / "model.gguf"), "--context", str(tokens),
                   "--batch", "1", "--steps", "2", "--sample", "0", "--held-out", "0", "--recompute", "always",
                   "--lora-rank", "16", "--output", str(out)]
        program += ["--offload", offload] if offload else []
        program += [*more, str(self.work / "text.txt")]
        gpus = [word for card in [card, *cards] for word in ("--gpu", card)]
        ended = subprocess.run([self.headroom, "dry-run", "--json", "--time-limit", "3600", *gpus, "--", *program], capture_output=True, text=True)
        answer = json.loads(ended.stdout) if ended.returncode in (0, 1, 2) else {}
        if "peak" not in answer:
            sys.exit(f"{name}, {tokens} tokens: status {ended.returncode}\n{ended.stderr[-3000:]}{ended.stdout[-2000:]}")
        peak = answer["peak"]
        self.held = next(held["bytes"] for held in peak["held"] if held["by"].startswith("outside of steps"))
        self.fits = {card["card"]: card["fits"] for card in answer["cards"]}
        return ended.returncode == 0, peak["tensor_bytes"] / GIB, peak["outside_bytes"][1] / GIB, ended.stderr


def moved(printed):
    """What `--offload` says of the host's pinned memory."""
    found = re.findall(r"^--offload: .*$", printed, re.MULTILINE)
    return found[-1].strip() if found else ""


def figure(name, value, unit):
    print(f"figure: qlora/{name} = {value} {unit}", flush=True)


def most_tokens(runs, name, card, offload):
    """The most tokens that fit, of some numbers: what attention asks of the driver grows with the square."""
    fitting = 0
    for tokens in (65536, 98304, 131072):
        fits, peak, _, printed = runs.run(name, tokens, card, offload)
        print(f"{tokens} tokens: {peak:.2f} GiB of tensors; {moved(printed)}", flush=True)
        if not fits:
            break
        fitting = tokens
    return fitting


def main():
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if len(arguments) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(*arguments, pathlib.Path(work))
        model, card = "Llama-3.1-8B", "RTX 4090"
        _, peak, *_ = runs.run(model, 4096, card, None, ["--moments", "8bit"])
        figure("peak_gib_4k_8bit_moments", f"{peak:.2f}", "GiB")
        # The whole run's peak, in which a step of few tokens takes little: loading took no more.
        _, peak, *_ = runs.run(model, 16, card)
        figure("load_peak_device", f"{(peak * GIB - runs.held) / 2**20:.0f}", "MiB above what is held, at most")
        for tokens in (4096, 16384, 32768):
            for offload in (None, "48GiB"):
                fits, peak, outside, printed = runs.run(model, tokens, card, offload)
                name = f"peak_gib_{tokens // 1024}k" + ("_offload" if offload else "")
                figure(name, f"{peak:.2f}", f"GiB of tensors, at most {outside:.2f} outside them{'' if fits else ', which does not fit'}")
                if offload:
                    print(moved(printed), flush=True)
        figure("most_tokens_24gb", most_tokens(runs, model, card, "60GiB"), "tokens")
        if "--table" in sys.argv:
            print(f"| model | tokens of a sample | GiB of tensors | {' | '.join(CARDS)} |\n|---|---|---|{'---|' * len(CARDS)}")
            for model in MODELS:
                for tokens in (4096, 16384, 32768):
                    _, peak, _, printed = runs.run(model, tokens, "B300", "200GiB", cards=CARDS)
                    fits = [runs.fits[card] for card in CARDS]
                    print(f"| {model} | {tokens:,} | {peak:.1f} | {' | '.join(fits)} |", flush=True)


main()
