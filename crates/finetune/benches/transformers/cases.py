"""Small random models of each family with an adapter, and what transformers and PEFT compute with them."""
import pathlib

import gguf
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

IGNORED = -100
ATTENTION = ["q_proj", "v_proj"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def configurations(width, heads, inner, vocabulary, window):
    """Name, class, configuration, and the options of its adapter."""
    common = dict(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=heads,
        max_position_embeddings=128, bos_token_id=1, eos_token_id=2, attention_dropout=0.0, tie_word_embeddings=False,
    )
    wide = 2 * (width // heads // 2) + 2  # a head's width that is not width / heads
    linear = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    everywhere, some = {"target_modules": "all-linear"}, {"target_modules": ATTENTION}
    half = max(1, heads // 2)
    return [
        ("llama-2", LlamaForCausalLM, LlamaConfig(**common, num_key_value_heads=heads), some),
        ("llama-3", LlamaForCausalLM,
         LlamaConfig(**{**common, "eos_token_id": [2, 3]}, num_key_value_heads=half, rope_parameters=LLAMA3), everywhere),
        ("llama-linear-biases", LlamaForCausalLM,
         LlamaConfig(**common, num_key_value_heads=half, rope_parameters=linear, attention_bias=True, mlp_bias=True), some),
        ("smollm", LlamaForCausalLM,
         LlamaConfig(**{**common, "tie_word_embeddings": True}, num_key_value_heads=1),
         {**everywhere, "use_rslora": True}),
        ("mistral", MistralForCausalLM,
         MistralConfig(**common, num_key_value_heads=half, head_dim=wide, sliding_window=window), everywhere),
        ("qwen2", Qwen2ForCausalLM,
         Qwen2Config(**{**common, "tie_word_embeddings": True}, num_key_value_heads=half), {**some, "use_dora": True}),
        ("qwen2-window", Qwen2ForCausalLM,
         Qwen2Config(**common, num_key_value_heads=half, use_sliding_window=True, sliding_window=window, max_window_layers=1),
         {"target_modules": ["mlp.up_proj", "o_proj"]}),
        ("qwen3", Qwen3ForCausalLM, Qwen3Config(**common, num_key_value_heads=half, head_dim=wide),
         {**everywhere, "use_dora": True, "use_rslora": True}),
    ]


def loss_of(logits, targets):
    """The sum over the targets that count."""
    loss = torch.nn.functional.cross_entropy
    return loss(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def computed(kind, model, tokens, targets):
    """Logits, loss and gradients, under the names of `expected.safetensors`."""
    logits = model(tokens).logits
    loss = loss_of(logits, targets)
    model.zero_grad(set_to_none=True)
    loss.backward()
    tensors = {f"{kind}.logits": logits.detach(), f"{kind}.loss": loss.detach()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            # As PEFT saves them.
            saved = name.replace(".default.", ".").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
            tensors[f"{kind}.grad.{saved}"] = parameter.grad
    return tensors


def make(folder, sizes, time):
    """Writes all cases below a folder and returns their paths."""
    paths = []
    for seed, (name, kind, config, adapter) in enumerate(configurations(**sizes)):
        torch.manual_seed(seed)
        case = pathlib.Path(folder) / name
        model = kind(config)
        with torch.no_grad():
            for parameter in model.parameters():  # no norm is 1 and no bias 0
                parameter.add_(torch.randn_like(parameter) * 0.1)
        tokens = torch.randint(config.vocab_size, (2, time))
        targets = torch.randint(config.vocab_size, (2, time))
        targets[0, : time // 3] = IGNORED
        model.save_pretrained(case)
        expected = {"tokens": tokens, "targets": targets, **computed("base", model, tokens, targets)}
        options = LoraConfig(r=2, lora_alpha=6, lora_dropout=0.0, init_lora_weights=False, task_type="CAUSAL_LM", **adapter)
        adapted = get_peft_model(model, options)
        adapted.save_pretrained(case / "adapter")
        expected.update(computed("lora", adapted, tokens, targets))
        save_file({name: tensor.contiguous() for name, tensor in expected.items()}, case / "expected.safetensors")
        paths.append(case)
    return paths


# Names of parts in transformers and in llama.cpp's files.
PARTS = [
    ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output"), ("model.layers", "blk"),
    ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"), ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
]


def permuted(rows, heads):
    """The order of the rows of Llama's queries and keys in llama.cpp's files, as its convert_hf_to_gguf.py makes it."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path, model, architecture):
    """Writes a model's parameters in several types, and sets them to what these hold."""
    kinds = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        kind = kinds.F32 if values.ndim == 1 else kinds.Q4_0 if "mlp" in name else kinds.F16 if "v_proj" in name else kinds.Q8_0
        stored = values if kind == kinds.F32 else gguf.quants.quantize(values, kind)
        parameter.data = torch.from_numpy(gguf.quants.dequantize(stored, kind).copy())
        layer = name.split(".")[-2]
        if architecture == "llama" and layer in heads:
            stored = permuted(stored, heads[layer])
        for part, own in PARTS:
            name = name.replace(part + ".", own + ".")
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_gguf(folder, time):
    """Writes a case in a GGUF file for each architecture, whose rows are as wide as blocks, and returns their paths."""
    sizes = dict(width=64, heads=4, inner=32, vocabulary=32, window=7)
    chosen = {"llama-3": "llama", "llama-linear-biases": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
    paths = []
    for name, kind, config, adapter in configurations(**sizes):
        if name not in chosen:
            continue
        torch.manual_seed(len(paths))
        case = pathlib.Path(folder) / f"gguf-{name}"
        config.num_hidden_layers = 1
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:1]
        config.head_dim = config.hidden_size // config.num_attention_heads
        model = kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        config.save_pretrained(case)
        write_gguf(case / "model.gguf", model, chosen[name])
        tokens = torch.randint(config.vocab_size, (2, time))
        targets = torch.randint(config.vocab_size, (2, time))
        expected = {"tokens": tokens, "targets": targets}
        options = LoraConfig(r=2, lora_alpha=6, lora_dropout=0.0, init_lora_weights=False, task_type="CAUSAL_LM", **adapter)
        adapted = get_peft_model(model, options)
        adapted.save_pretrained(case / "adapter")
        expected.update(computed("lora", adapted, tokens, targets))
        save_file({name: tensor.contiguous() for name, tensor in expected.items()}, case / "expected.safetensors")
        paths.append(case)
    return paths
