"""Small random models of each family with an adapter, and what transformers and PEFT compute with them."""
import pathlib

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
         Qwen2Config(**{**common, "tie_word_embeddings": True}, num_key_value_heads=half), some),
        ("qwen2-window", Qwen2ForCausalLM,
         Qwen2Config(**common, num_key_value_heads=half, use_sliding_window=True, sliding_window=window, max_window_layers=1),
         {"target_modules": ["mlp.up_proj", "o_proj"]}),
        ("qwen3", Qwen3ForCausalLM, Qwen3Config(**common, num_key_value_heads=half, head_dim=wide), everywhere),
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
            tensors[f"{kind}.grad.{name.replace('.default.', '.')}"] = parameter.grad
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
