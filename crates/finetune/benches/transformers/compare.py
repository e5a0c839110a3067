"""Compares the model of the program `finetune` with transformers and PEFT. Started by scripts/compare-with-transformers.sh."""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import cases

HERE = pathlib.Path(__file__).parent
LARGEST_LOGIT = 1e-4
LARGEST_GRADIENT = 1e-4
# Tensors are mapped one by one and returned to the system when they are freed, so that the resident set is what is alive.
RETURNING = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1",
             "OMP_WAIT_POLICY": "passive"}
# Shaped as SmolLM-135M: 30 layers, a vocabulary of 85 times the width, one key head for three heads.
MEASURED = dict(
    vocab_size=16384, hidden_size=192, intermediate_size=512, num_hidden_layers=30, num_attention_heads=3, num_key_value_heads=1,
    max_position_embeddings=2048, tie_word_embeddings=True, attention_dropout=0.0, bos_token_id=1, eos_token_id=2,
)
# `nf4` is LoRA beside a base that bitsandbytes has quantized, on its side.
WHATS = ["lora", "nf4", "full"]


def families(bench, folder):
    """Compares each case in both directions and prints a table."""
    print("| family | logits | gradients | with LoRA: logits | gradients | our folder in transformers | our adapter in PEFT |")
    print("|---|---|---|---|---|---|---|")
    equal = 0
    paths = cases.make(folder, dict(width=48, heads=4, inner=80, vocabulary=131, window=7), time=40)
    for case in paths:
        lines = subprocess.run([bench, "compare", case], check=True, capture_output=True, text=True).stdout.split("\n")
        found = {tuple(line.split()[:2]): float(line.split()[2]) for line in lines if line}
        logits = load_file(case / "ours" / "logits.safetensors")
        tokens = load_file(case / "expected.safetensors")["tokens"]
        with torch.no_grad():
            model = AutoModelForCausalLM.from_pretrained(case / "ours")
            loaded = (model(tokens).logits - logits["base"]).abs().max().item()
            base = AutoModelForCausalLM.from_pretrained(case)
            adapted = PeftModel.from_pretrained(base, case / "ours" / "adapter")
            adapter = (adapted(tokens).logits - logits["lora"]).abs().max().item()
        numbers = [found["base", "logits"], found["base", "gradients"], found["lora", "logits"], found["lora", "gradients"]]
        numbers += [loaded, adapter]
        limits = [LARGEST_LOGIT, LARGEST_GRADIENT] * 2 + [LARGEST_LOGIT] * 2
        equal += all(number <= limit for number, limit in zip(numbers, limits))
        print(f"| {case.name} | " + " | ".join(f"{number:.1e}" for number in numbers) + " |")
    print(f"figure: finetune/families_equal = {equal} of {len(paths)}")
    print("\n| base in a GGUF file | with LoRA: logits | gradients |\n|---|---|---|")
    quantized = cases.make_gguf(folder, time=40)
    for case in quantized:
        lines = subprocess.run([bench, "compare-gguf", case], check=True, capture_output=True, text=True).stdout.split("\n")
        numbers = [float(line.split()[2]) for line in lines if line]
        equal += all(number <= limit for number, limit in zip(numbers, [LARGEST_LOGIT, LARGEST_GRADIENT]))
        print(f"| {case.name} | " + " | ".join(f"{number:.1e}" for number in numbers) + " |")
    print(f"figure: finetune/gguf_equal = {equal - len(paths)} of {len(quantized)}")
    return equal == len(paths) + len(quantized)


def limited(threads):
    """Variables that limit both sides to so many threads."""
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"]
    return {**{name: str(threads) for name in names}, "TOKENIZERS_PARALLELISM": "false"}


class Process:
    """One side, which takes a step when it is told to."""

    def __init__(self, bench, ours, folder, what, samples, time, threads, more=None):
        command = [bench, "steps"] if ours else [sys.executable, HERE / "steps.py"]
        command += [folder, what, str(samples), str(time)]
        pipe = subprocess.PIPE
        environment = {**os.environ, **limited(threads), **(more or {})}
        # Shown only if it dies: transformers warns a lot.
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env=environment)

    def step(self):
        """Seconds and KiB."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.fail()
        words = self.process.stdout.readline().split()
        if len(words) != 2:
            self.fail()
        return float(words[0]), int(words[1])

    def fail(self):
        status = self.process.wait()
        self.errors.seek(0)
        command = " ".join(map(str, self.process.args))
        sys.exit(f"{self.errors.read()}\n{command}: ended with status {status}")

    def timed_step(self):
        """Seconds, and those that all threads together ran."""
        before = self.ran()
        seconds, _ = self.step()
        return seconds, self.ran() - before

    def ran(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            user, system = stat.read().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def mib_per_sample(bench, ours, folder, what, time, threads):
    """The slope of the peak between two batches."""
    peaks = []
    few, many = 2, 6
    for samples in (few, many):
        process = Process(bench, ours, folder, what, samples, time, threads, RETURNING)
        process.step()  # what is made once
        peaks.append(process.step()[1])
        process.end()
    return (peaks[1] - peaks[0]) / 1024 / (many - few)


def seconds_of_step(bench, folder, what, samples, time, rounds, threads):
    """Medians of seconds and of processor seconds, each of transformers and of ours, from steps that alternate."""
    sides = [Process(bench, ours, folder, what, samples, time, threads) for ours in (False, True)]
    for side in sides:
        side.step()
    taken = [[side.timed_step() for side in sides] for _ in range(rounds)]
    for side in sides:
        side.end()
    return [[statistics.median(step[side][kind] for step in taken) for side in (0, 1)] for kind in (0, 1)]


def measure(bench, folder, time, samples, rounds, threads):
    model = LlamaForCausalLM(LlamaConfig(**MEASURED))
    model.save_pretrained(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")).save_pretrained(folder / "adapter")
    print(f"\n{parameters / 1e6:.1f} M parameters, samples of {time} tokens; time: {samples} samples, {rounds} rounds, {threads} threads\n")
    print("| trained | blocks | transformers, MiB for each sample | ours | ratio | transformers, s for a step | ours | ratio "
          "| transformers, processor s | ours | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    memory, seconds, ran = {}, {}, {}
    for what in WHATS:
        for again in ("", "-recomputing"):
            theirs, ours = (mib_per_sample(bench, side, folder, what + again, time, threads) for side in (False, True))
            times = seconds_of_step(bench, folder, what + again, samples, time, rounds, threads)
            memory[what, again] = ours / theirs
            seconds[what, again], ran[what, again] = (ours / theirs for theirs, ours in times)
            blocks = "recomputed" if again else "kept"
            print(f"| {what} | {blocks} | {theirs:.1f} | {ours:.1f} | {ours / theirs:.2f} "
                  + "".join(f"| {theirs:.2f} | {ours:.2f} | {ours / theirs:.2f} " for theirs, ours in times) + "|", flush=True)
    print()
    figures = [("mib_per_sample_vs_transformers", memory, "", 0.6),
               ("mib_per_sample_vs_transformers_checkpointing", memory, "-recomputing", 0.6),
               ("step_time_vs_transformers", seconds, "", 1.0),
               ("step_time_vs_transformers_checkpointing", seconds, "-recomputing", 1.0),
               ("step_processor_time_vs_transformers", ran, "", 1.0)]
    for name, ratios, again, goal in figures:
        for what in WHATS:
            print(f"figure: finetune/{name}_{what} = {ratios[what, again]:.3f} x")
        worst = max(ratios[what, again] for what in WHATS)
        print(f"figure: finetune/{name} = {worst:.3f} x" + ("" if worst <= goal else f" (goal {goal} x missed)"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", help="the program of crates/finetune/benches/transformers")
    parser.add_argument("--work", type=pathlib.Path, help="a folder for models")
    parser.add_argument("--golden", help="only writes the cases of the tests into this folder")
    parser.add_argument("--quick", action="store_true", help="compares the families only")
    parser.add_argument("--measure", action="store_true", help="measures only")
    parser.add_argument("--threads", type=int, default=2, help="of each side; where other programs run, 1 is fairer to both")
    parser.add_argument("--samples", type=int, default=4, help="of a step whose time is taken")
    parser.add_argument("--rounds", type=int, default=9, help="steps of each side, of whose times the median is taken")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}\n")
    if options.golden:
        small = cases.make(options.golden, dict(width=8, heads=2, inner=12, vocabulary=16, window=5), time=12)
        for case in small + cases.make_gguf(options.golden, time=12):
            (case / "adapter" / "README.md").unlink()
            (case / "generation_config.json").unlink(missing_ok=True)
        return
    if not options.measure and not families(options.bench, options.work / "cases"):
        sys.exit(1)
    if not options.quick:
        measure(options.bench, options.work / "measured", time=128, samples=options.samples, rounds=options.rounds,
                threads=options.threads)


main()
