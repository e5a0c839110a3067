#!/usr/bin/env bash
# Compares the allocations of executing and of allocating only (scripts/compare-modes.py) for training steps: the example `train_text` with
# each type, moments and recomputation, under a limit and where memory runs out, on two ranks, `finetune` with each family of models, and the
# layers and steps of the benchmark `cuda`.
#
#     . scripts/cuda-env.sh && bash scripts/compare-steps.sh
#
# It builds both for CUDA, as release.
set -euo pipefail
cd "$(dirname "$0")/.."
release="${CARGO_TARGET_DIR:-target}/release"
cargo build --release --locked --features cuda,layers --example train_text
cargo build --release --locked -p headroom-finetune --features cuda
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A small model with its tokenizer, which `finetune` makes; and the same for the other families, with what they have besides.
"$release/finetune" --device cpu --full --steps 1 --quiet --output "$work/demonstration" >/dev/null
mv "$work/demonstration/untrained" "$work/llama"
python3 - "$work" <<'PYTHON'
import json, pathlib, shutil, struct, sys

work = pathlib.Path(sys.argv[1])
for family, name in [("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3")]:
    folder = work / family
    shutil.copytree(work / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type=family, architectures=[f"{name}ForCausalLM"])
    config = {key: value for key, value in config.items() if key not in ("mlp_bias", "pretraining_tp")}
    if family == "qwen2":
        config.pop("attention_bias", None)
    (folder / "config.json").write_text(json.dumps(config))
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    more = {}
    for layer in range(config["num_hidden_layers"]):
        attention = f"model.layers.{layer}.self_attn."
        if family == "qwen2":
            more |= {f"{attention}{part}_proj.bias": count * size for part, count in [("q", heads), ("k", keys), ("v", keys)]}
        if family == "qwen3":
            more |= {f"{attention}{part}_norm.weight": size for part in "qk"}
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, tensors = json.loads(data[8 : 8 + length]), data[8 + length :]
    dtype = next(entry["dtype"] for key, entry in header.items() if key != "__metadata__")
    width = {"F32": 4, "BF16": 2, "F16": 2}[dtype]
    for key, count in more.items():
        header[key] = {"dtype": dtype, "shape": [count], "data_offsets": [len(tensors), len(tensors) + count * width]}
        tensors += bytes(count * width)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + tensors)
PYTHON

programs=()
text=("$release/examples/train_text" --device cuda:0 --steps 2 --context 32)
small="--budget 1GiB --batch 8"
# The last one runs out of memory, and is cut.
for options in "$small" "$small --dtype bf16" "$small --dtype f16" "$small --moments 8bit" "$small --moments bf16" \
    "$small --recompute always" "--budget 40MiB --batch 64"; do
    read -ra options <<<"$options"
    programs+=(-- "${text[@]}" "${options[@]}")
done
# Two ranks, with NCCL's stand-in.
ranks='for rank in 1 0; do RANK=$rank LOCAL_RANK=$rank "$@" --device cuda:$rank & all="$all $!"; done; for one in $all; do wait "$one" || exit; done'
programs+=(-- env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29519 bash -c "$ranks" ranks "$release/examples/train_text" --ranks)
programs+=(--steps 2 --context 32 --budget 1GiB --batch 8)
# One token of text: how many follow is decided by values.
for family in llama mistral qwen2 qwen3; do
    fine=("$release/finetune" --device cuda:0 --budget 1GiB --steps 2 --batch 2 --context 32 --sample 1 --eval-every 2 --model "$work/$family")
    fine+=(--held-out 0.02 --output '{folder}/out')
    programs+=(-- "${fine[@]}" LICENSE -- "${fine[@]}" --full LICENSE)
done
# Attention, norms, losses, a layer of Llama and a language model: each of the benchmark's steps once.
steps=$(cargo bench --no-run --locked --features cuda,layers --bench cuda 2>&1 | sed -n 's/.*Executable.*(\(.*\))$/\1/p')
programs+=(-- "$steps" --once)
python3 scripts/compare-modes.py "${programs[@]}"
