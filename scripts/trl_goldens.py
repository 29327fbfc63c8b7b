"""TRL's GRPO losses and vLLM corrections on random batches.

Runs in the environment of requirements/trl.txt (see requirements/README.md), without simlab:
`python scripts/trl_goldens.py --seed 20261121 --out tests/objectives/goldens`.

The trainer itself wants a model and a data set, so its methods are called on a stand-in that has only the
settings they read. The corrections and the advantages are not methods but blocks inside a long one; they are
cut out of TRL's syntax tree and executed as they stand.
"""

# pyright: reportMissingImports=false
import argparse
import ast
import inspect
import math
import sys
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from golden_batches import GROUP_SIZE, random_batch
from trl import GRPOTrainer
from trl.trainer.utils import nanstd


@dataclass(frozen=True)
class TrlVariant:
    """One setting of `GRPOConfig`, by the names that TRL uses."""

    loss_type: str = "grpo"
    epsilon: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    importance_sampling_level: str = "token"
    scale_rewards: str = "group"
    off_policy_mask_threshold: float | None = None
    vllm_mode: str | None = None
    vllm_clip_max: float = 3.0


VARIANTS = {
    "grpo": TrlVariant(),
    "grpo delta 4": TrlVariant(delta=4.0),
    "bnpo": TrlVariant("bnpo"),
    "dapo": TrlVariant("dapo", epsilon_high=0.28),
    "dr_grpo": TrlVariant("dr_grpo", scale_rewards="none"),
    "cispo": TrlVariant("cispo", epsilon_high=1.2),
    "sapo": TrlVariant("sapo"),
    "gspo": TrlVariant(epsilon=3e-4, epsilon_high=4e-4, importance_sampling_level="sequence"),
    "gspo_wide": TrlVariant(importance_sampling_level="sequence"),
    "vespo": TrlVariant("vespo"),
    "vespo+token_truncate": TrlVariant("vespo", vllm_mode="token_truncate"),
    "luspo": TrlVariant("luspo", epsilon=2e-3, epsilon_high=2.5e-3, importance_sampling_level="sequence"),
    "luspo_wide": TrlVariant("luspo", importance_sampling_level="sequence"),
    "opsm": TrlVariant("dr_grpo", off_policy_mask_threshold=0.05),
    **{
        f"{loss_type}+{mode}": TrlVariant(loss_type, vllm_mode=mode)
        for loss_type in ("grpo", "bnpo")
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    },
}


def block(function, condition: str, contains: str) -> CodeType:
    """Compile the body of the `if <condition>:` inside `function` that contains the given text."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == condition:
            body = ast.Module(node.body, type_ignores=[])
            if contains in ast.unparse(body):
                return compile(body, f"<{function.__name__}: if {condition}>", "exec")
    raise LookupError(f"{function.__name__} has no `if {condition}:` that contains {contains!r}")


_GENERATE = GRPOTrainer._generate_and_score_completions
CORRECTION = block(
    _GENERATE, "self.use_vllm and self.vllm_importance_sampling_correction", "masked_fill(invalid_mis_mask"
)
ADVANTAGE = block(
    _GENERATE, "self.multi_objective_aggregation == 'sum_then_normalize'", "std_rewards + 0.0001"
)


def trainer(variant: TrlVariant, tokens: int, logp: torch.Tensor) -> Any:
    """Return the attributes of a `GRPOTrainer` that the loss reads; its model answers with `logp`."""
    return SimpleNamespace(
        **{
            name: getattr(variant, name)
            for name in ("loss_type", "importance_sampling_level", "scale_rewards")
        },
        epsilon_low=variant.epsilon,
        epsilon_high=variant.epsilon_high,
        off_policy_mask_threshold=variant.off_policy_mask_threshold,
        use_vllm=variant.vllm_mode is not None,
        vllm_importance_sampling_correction=variant.vllm_mode is not None,
        vllm_importance_sampling_mode=variant.vllm_mode,
        vllm_importance_sampling_clip_max=variant.vllm_clip_max,
        vllm_importance_sampling_clip_min=None,
        args=SimpleNamespace(
            delta=variant.delta,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            vespo_k_pos=2.0,
            vespo_lambda_pos=3.0,
            vespo_k_neg=3.0,
            vespo_lambda_neg=2.0,
            use_bias_correction_kl=True,
            steps_per_generation=1,
        ),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda values: values, reduce=lambda values, **_: values
        ),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        current_gradient_accumulation_steps=1,
        max_completion_length=tokens,
        _metrics={"train": defaultdict(list)},
        top_entropy_quantile=1.0,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        beta=0.0,
    )


def advantages(scale_rewards: str, rewards: torch.Tensor) -> torch.Tensor:
    """Return TRL's own advantages, `[B]`; it adds 1e-4 to the standard deviation."""
    names = {
        "self": SimpleNamespace(
            scale_rewards=scale_rewards, reward_weights=torch.ones(1), reward_funcs=[None]
        ),
        "rewards_per_func": rewards[:, None],
        "unscorable_mask": torch.zeros(len(rewards), dtype=torch.bool),
        "num_generations": GROUP_SIZE,
        "device": "cpu",
        "torch": torch,
        "nanstd": nanstd,
    }
    exec(ADVANTAGE, names)
    return names["advantages"]


def correction(stand_in: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return TRL's weights for the mismatch, `[B, T]` or `[B, 1]`."""
    names = {
        "self": stand_in,
        "old_per_token_logps": batch["logp_train"],
        "sampling_per_token_logps": batch["logp_infer"],
        "completion_mask": batch["mask"],
        "tool_mask": None,
        "torch": torch,
        "math": math,
    }
    exec(CORRECTION, names)
    return names["vllm_importance_sampling_ratio"]


def lab_advantages(scale_rewards: str, rewards: torch.Tensor) -> torch.Tensor:
    """Return the advantages with 1e-6 instead, as in verl, so that the losses can be compared."""
    grouped = rewards.view(-1, GROUP_SIZE)
    centered = grouped - grouped.mean(1, keepdim=True)
    if scale_rewards == "group":
        centered = centered / (grouped.std(1, keepdim=True) + 1e-6)
    return centered.flatten()


def compute_loss(
    variant: TrlVariant, batch: dict[str, torch.Tensor], beta: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return TRL's loss, the log-probs that it depends on, and the local variables of `_compute_loss`.

    With `beta`, the loss has a KL term whose reference policy is the inference engine.
    """
    logp = batch["logp"].clone().requires_grad_()
    stand_in = trainer(variant, logp.shape[1], logp)
    stand_in.beta = beta
    prompt = torch.zeros((len(logp), 1))
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": batch["mask"],
        "completion_mask": batch["mask"],
        "advantages": lab_advantages(variant.scale_rewards, batch["rewards"]),
        "old_per_token_logps": batch["logp_train"],
        "num_items_in_batch": batch["mask"].sum(),
        "ref_per_token_logps": batch["logp_infer"],
    }
    if variant.vllm_mode:
        inputs["importance_sampling_ratio"] = correction(stand_in, batch)
    seen: dict[str, Any] = {}

    def record_locals(frame, event, _arg):
        if event == "return" and frame.f_code is GRPOTrainer._compute_loss.__code__:
            seen.update(frame.f_locals)

    sys.setprofile(record_locals)
    value = GRPOTrainer._compute_loss(stand_in, None, inputs)
    sys.setprofile(None)
    return value, logp, seen


def loss(variant: TrlVariant, batch: dict[str, torch.Tensor]) -> tuple[np.ndarray, ...]:
    """Return -loss, its gradient in the log-probs, and the sum of the absolute terms of the loss.

    The last bounds what another order of summation may change.
    """
    value, logp, seen = compute_loss(variant, batch)
    slope, gradient = torch.autograd.grad(value, [seen["per_token_loss"], logp])
    magnitude = (slope * seen["per_token_loss"]).abs().sum()
    return -value.detach().numpy(), -gradient.numpy(), magnitude.detach().numpy()


def corrected_kl(batch: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Return minus the mean of the bias-corrected KL tokens, and its gradient in the log-probs."""
    _, logp, seen = compute_loss(TrlVariant("bnpo"), batch, beta=1.0)
    value = -(seen["per_token_kl"] * batch["mask"]).sum() / batch["mask"].sum()
    return value.detach().numpy(), torch.autograd.grad(value, logp)[0].numpy()


def goldens(seed: int) -> dict[str, Any]:
    """Return the arrays of `trl_losses.npz`."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {"names": np.array(list(VARIANTS))}
    # Not further away: TRL does not clamp log-ratios, so exp overflows from 88 on.
    for label, far in {"moderate": 0.0, "wide 2": 2.0, "wide 6": 6.0, "wide 12": 12.0}.items():
        batch = random_batch(rng, far)
        torched = {name: torch.from_numpy(values) for name, values in batch.items()}
        rows = [loss(variant, torched) for variant in VARIANTS.values()]
        columns = map(np.stack, zip(*rows, strict=True))
        results: dict[str, Any] = dict(zip(("value", "coefficients", "magnitude"), columns, strict=True))
        for scale in ("group", "none"):
            results[f"advantages_{scale}"] = advantages(scale, torched["rewards"]).numpy()
        results["corrected_kl value"], results["corrected_kl gradient"] = corrected_kl(torched)
        arrays |= {f"{label}/{name}": array for name, array in (batch | results).items()}
    return arrays


def main() -> None:
    """Write the file into the folder given by `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    np.savez_compressed(arguments.out / "trl_losses.npz", **goldens(arguments.seed))


if __name__ == "__main__":
    main()
