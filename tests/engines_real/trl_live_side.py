"""Runs inside TRL's environment: steps of a real `GRPOTrainer` with the live diagnosis, on CPU.

`python trl_live_side.py OUT`. The inference engine is a copy of a tiny random model, with weights in
BF16, that samples in a `rollout_func`; in the faulty run it reports base-2 log-probs.
"""

# pyright: reportMissingImports=false
import copy
import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from simlab.integrations.live_diagnosis import LiveDiagnosis, RunStoppedError

VOCABULARY, LENGTH = 96, 40
STEPS = 4


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of words without a download."""
    words = {"<pad>": 0, "<eos>": 1, **{f"w{number}": number for number in range(2, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def rounded_copy(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a copy with weights rounded to BF16; a deep copy keeps the trainer's patched methods."""
    engine = LlamaForCausalLM(copy.deepcopy(model.config)).eval()
    weights = {name: leaf.to(torch.bfloat16).float() for name, leaf in model.state_dict().items()}
    engine.load_state_dict(weights)
    return engine


def make_rollout(scale: float):
    """Return a `rollout_func` that samples from a rounded copy of the trainer's weights.

    Args:
        scale: Factor of the reported log-probs: 1, or 1 / ln 2.
    """

    @torch.no_grad()
    def sample(prompts, trainer):
        engine = rounded_copy(trainer.accelerator.unwrap_model(trainer.model))
        ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
        tokens, scores = torch.tensor(ids), []
        for _ in range(LENGTH):
            logps = torch.log_softmax(engine(tokens).logits[:, -1].float(), -1)
            chosen = torch.multinomial(logps.exp(), 1)
            scores.append(logps.gather(1, chosen))
            tokens = torch.cat([tokens, chosen], 1)
        logprobs = torch.cat(scores, 1) * scale
        completions = tokens[:, len(ids[0]) :].tolist()
        kept = [row.index(1) + 1 if 1 in row else LENGTH for row in completions]
        return {
            "prompt_ids": ids,
            "completion_ids": [row[:end] for row, end in zip(completions, kept, strict=True)],
            "logprobs": [row[:end] for row, end in zip(logprobs.tolist(), kept, strict=True)],
        }

    return sample


def train(scale: float, live: LiveDiagnosis, out: Path) -> list[dict]:
    """Run `STEPS` steps and return the trainer's log."""
    torch.manual_seed(0)
    # Threads that wait for each other on a busy machine take many times as long as one.
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        pad_token_id=0,
        eos_token_id=1,
    )
    trainer = GRPOTrainer(
        model=LlamaForCausalLM(config),
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        args=GRPOConfig(
            output_dir=str(out),
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=16,
            num_generations=4,
            # Not the number of accumulated steps, so that TRL computes the old log-probs.
            steps_per_generation=2,
            gradient_accumulation_steps=1,
            max_completion_length=LENGTH,
            max_steps=STEPS,
            learning_rate=1e-4,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"w{2 + k % 90} w{5 + k % 50} w7" for k in range(64)]}),
        processing_class=make_tokenizer(),
        rollout_func=make_rollout(scale),
    )
    live.attach_trl(trainer)
    trainer.train()
    return trainer.state.log_history


def main(out: Path) -> None:
    """Train without a fault, with base-2 log-probs, and with a stop on them."""
    base_2 = 1.4426950408889634
    found: dict[str, object] = {
        "no fault": train(1.0, LiveDiagnosis(), out),
        "base 2": train(base_2, LiveDiagnosis(), out),
    }
    try:
        train(base_2, LiveDiagnosis(stop_on=("log_base",), stop_probability=0.3, patience=2), out)
    except RunStoppedError as error:
        found["stopped"] = str(error)
    (out / "live.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
