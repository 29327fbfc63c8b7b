"""Run the same training step with TRL's GRPOTrainer in float32.

Runs in the environment of requirements/trl.txt, without simlab: `python step_speed_trl.py SETTINGS.json`.
Prints one line of JSON: the seconds of each step. A step is a rollout of `prompts` x `group_size` responses
by transformers' `generate` and `minibatches` updates. Rewards are random: the time does not depend on
them, but a group with equal rewards would have no gradient.
"""

# pyright: reportMissingImports=false
import itertools
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Record the time after each update."""

    def __init__(self):
        """Start without times."""
        self.times = []

    def on_step_end(self, args, state, control, **kwargs):
        """Record the time of the step."""
        del args, state, control, kwargs
        self.times.append(time.perf_counter())


def reward_at_random(completions, **columns):
    """Reward each completion at random."""
    del columns
    return [float(random.random() < 0.5) for _ in completions]


def main(settings: dict) -> None:
    """Train for `steps` steps and print what each took."""
    torch.set_num_threads(settings["threads"])
    torch.set_flush_denormal(True)
    sequences, minibatches = settings["prompts"] * settings["group_size"], settings["minibatches"]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=sequences // minibatches,
            steps_per_generation=minibatches,
            num_generations=settings["group_size"],
            max_completion_length=settings["response_length"],
            max_steps=settings["steps"] * minibatches,
            learning_rate=2.5e-4,
            adam_beta2=0.99,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(settings["checkpoint"], dtype=torch.float32),
            reward_funcs=reward_at_random,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": text} for text in settings["texts"]]),
            processing_class=AutoTokenizer.from_pretrained(settings["checkpoint"], padding_side="left"),
            callbacks=[clock],
        )
        start = time.perf_counter()
        trainer.train()
    ends = [start, *clock.times[minibatches - 1 :: minibatches]]
    sys.stdout.write(json.dumps([after - before for before, after in itertools.pairwise(ends)]) + "\n")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
