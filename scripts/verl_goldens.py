"""verl's policy losses, advantage estimators and rollout metrics on random batches.

Runs in the environment of requirements/verl.txt (see requirements/README.md), without simlab:
`python scripts/verl_goldens.py --seed 20261121 --out tests/objectives/goldens`.
"""

# pyright: reportMissingImports=false
import argparse
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from golden_batches import GROUP_SIZE, random_batch
from verl import DataProto
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.workers.config.actor import ActorConfig, PolicyLossConfig

NO_DUAL_CLIP = 1e10  # verl has no switch; beyond exp(20) the bound never acts
AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
)


@dataclass(frozen=True)
class VerlVariant:
    """One way of calling verl: loss mode, its settings, rollout correction, advantage estimator."""

    mode: str = "vanilla"
    aggregation: str = "seq-mean-token-mean"
    clip: tuple[float, float] = (0.2, 0.2)
    dual_clip: float = NO_DUAL_CLIP
    advantage: str = "grpo"
    filter_groups: bool = False
    baseline: str = "all"
    correction: dict[str, Any] = field(default_factory=dict)
    policy_loss: dict[str, Any] = field(default_factory=dict)


def _weights(level: str, threshold: float | str) -> dict[str, Any]:
    return {"rollout_is": level, "rollout_is_threshold": threshold}


def _rejection(option: str, threshold: float | str) -> dict[str, Any]:
    return {"rollout_rs": option, "rollout_rs_threshold": threshold}


# The losses of the catalog as simlab's presets set them.
LOSSES = {
    "reinforce": VerlVariant("gpg", aggregation="seq-mean-token-sum", advantage="remax"),
    "rloo": VerlVariant(clip=(0.2, 0.28), dual_clip=3.0, aggregation="token-mean", advantage="rloo"),
    "ppo": VerlVariant(dual_clip=3.0, aggregation="token-mean", advantage="gae"),
    "grpo": VerlVariant(),
    "dr_grpo": VerlVariant(dual_clip=3.0, aggregation="seq-mean-token-sum-norm", advantage="grpo_no_std"),
    "dapo": VerlVariant(clip=(0.2, 0.28), dual_clip=3.0, aggregation="token-mean", filter_groups=True),
    "gspo": VerlVariant("gspo", clip=(3e-4, 4e-4)),
    "gspo_wide": VerlVariant("gspo", clip=(0.2, 0.2)),
    "gmpo": VerlVariant("geo_mean", clip=(0.4, 0.4)),
    "cispo": VerlVariant("cispo", aggregation="token-mean"),
    "sapo": VerlVariant("sapo"),
    "gpg": VerlVariant("gpg", aggregation="token-mean"),
    "gpg gpg": VerlVariant("gpg", aggregation="token-mean", advantage="gpg"),
    "dppo_tv": VerlVariant("dppo_tv", aggregation="token-mean", dual_clip=20.0),
    "dppo_tv cap 3": VerlVariant("dppo_tv", aggregation="token-mean", dual_clip=3.0),
    "dppo_kl": VerlVariant("dppo_kl", aggregation="token-mean", dual_clip=20.0, clip=(0.05, 0.05)),
    "dro": VerlVariant("dro", aggregation="token-mean", policy_loss={"dro_beta": 0.1}),
    # So many that all candidates are taken: verl draws them with torch's generator.
    "clip_cov": VerlVariant("clip_cov", aggregation="token-mean", policy_loss={"clip_cov_ratio": 1.0}),
    "kl_cov": VerlVariant("kl_cov", aggregation="token-mean"),
    "kl_cov tenth": VerlVariant("kl_cov", aggregation="token-mean", policy_loss={"kl_cov_ratio": 0.1}),
    "gpg otb": VerlVariant("gpg", aggregation="token-mean", advantage="otb"),
    "gpg otb_full_tail": VerlVariant("gpg", aggregation="token-mean", advantage="otb_full_tail"),
}
# A lower bound of 1e-30 never acts (ratios are at least exp(-20)), which leaves "drop beyond 2": MIS.
WEIGHTS = {
    "token_tis": _weights("token", 2.0),
    "token_tis_5": _weights("token", 5.0),
    "token_mis": _weights("token", "1e-30_2"),
    "token_icepop": _weights("token", "0.5_5"),
    "seq_tis": _weights("sequence", 2.0),
    "seq_mis": _weights("sequence", "1e-30_2"),
    "seq_icepop": _weights("sequence", "0.5_5"),
}
REJECTIONS = {
    "token_k1": _rejection("token_k1", "0.8_1.2"),
    "token_k2": _rejection("token_k2", 0.05),
    "token_k3": _rejection("token_k3", 0.05),
    "seq_sum_k1": _rejection("seq_sum_k1", "0.5_1.2"),
    "seq_sum_k2": _rejection("seq_sum_k2", 0.1),
    "seq_sum_k3": _rejection("seq_sum_k3", 0.1),
    "seq_mean_k1": _rejection("seq_mean_k1", "0.9_1.1"),
    "seq_mean_k2": _rejection("seq_mean_k2", 0.02),
    "seq_mean_k3": _rejection("seq_mean_k3", 0.01),
    "seq_max_k2": _rejection("seq_max_k2", 0.1),
    "seq_max_k3": _rejection("seq_max_k3", 0.1),
}
WITH_WEIGHTS = ("dppo_tv", "dppo_kl", "dro", "clip_cov", "kl_cov", "gpg otb", "gpg otb_full_tail")
VARIANTS = {
    **LOSSES,
    **{f"grpo {mode}": replace(LOSSES["grpo"], aggregation=mode) for mode in AGGREGATIONS},
    **{f"grpo+{name}": replace(LOSSES["grpo"], correction=rule) for name, rule in WEIGHTS.items()},
    **{
        f"{loss}+{name}": replace(LOSSES[loss], correction=WEIGHTS[name])
        for loss in ("gspo", "gmpo", "cispo", "sapo", "gpg", *WITH_WEIGHTS)
        for name in ("token_tis", "seq_tis")
    },
    **{f"grpo+{name}": replace(LOSSES["grpo"], correction=rule) for name, rule in REJECTIONS.items()},
    "grpo+seq_mean_k1 token-mean": replace(
        LOSSES["grpo"], correction=REJECTIONS["seq_mean_k1"], aggregation="token-mean"
    ),
    "grpo+seq_mean_k1 survivors": replace(
        LOSSES["grpo"], correction=REJECTIONS["seq_mean_k1"], baseline="survivors"
    ),
    "gspo+token_k1": replace(LOSSES["gspo"], correction=REJECTIONS["token_k1"]),
    "grpo+token_tis+seq_mean_k1": replace(
        LOSSES["grpo"], correction=WEIGHTS["token_tis"] | REJECTIONS["seq_mean_k1"]
    ),
}
# Name here -> verl's estimator and its settings.
ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo_no_std": ("grpo", {"norm_adv_by_std_in_grpo": False}),
    "rloo": ("rloo", {}),
    "whitened": ("reinforce_plus_plus", {"config": SimpleNamespace(gamma=1.0)}),
    "gae": ("gae", {"gamma": 1.0, "lam": 1.0}),
    "gae_discounted": ("gae", {"gamma": 0.97, "lam": 0.9}),
    # With a baseline of zero: the reward itself.
    "remax": ("remax", {}),
    "gpg": ("gpg", {}),
    "otb": ("optimal_token_baseline", {}),
    "otb_full_tail": ("optimal_token_baseline", {"handle_zero_tail": False}),
}


def tensors(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return verl's view of a batch: the reward sits on the last token of the response."""
    torched = {name: torch.from_numpy(values) for name, values in batch.items()}
    rewards = torch.zeros_like(torched["mask"])
    last = torched["mask"].sum(-1).long().clamp(min=1) - 1
    rewards[torch.arange(len(last)), last] = torched["rewards"]
    return torched | {"token_rewards": rewards}


def advantages(
    batch: dict[str, torch.Tensor], name: str, index: np.ndarray, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Return what verl gives for the entry `name` of `ESTIMATORS`, `[B, T]`.

    `index` names the groups; `weights` are the rollout_is_weights.
    """
    estimator, options = ESTIMATORS[name]
    inputs = {
        "gae": {"values": batch["values"]},
        "remax": {"reward_baselines": torch.zeros(len(index))},
        "reinforce_plus_plus": {},
        "optimal_token_baseline": {
            "index": index,
            "old_log_probs": batch["logp_train"],
            "sum_pi_squared": batch["sum_squared_probabilities"],
            "rollout_is_weights": weights,
        },
    }
    return core_algos.get_adv_estimator_fn(estimator)(
        token_level_rewards=batch["token_rewards"].clone(),
        response_mask=batch["mask"],
        **inputs.get(estimator, {"index": index}),
        **options,
    )[0]


def _survivor_groups(surviving: torch.Tensor, mask: torch.Tensor, index: np.ndarray) -> np.ndarray:
    """Give every fully rejected response a group of its own: the others do not see it any more.

    A response of length 0 has a reward and was not rejected: it stays.
    """
    rejected = mask.any(-1) & ~surviving.any(-1)
    return np.where(rejected.numpy(), 1000 + np.arange(len(index)), index)


def _advantages_of(
    variant: VerlVariant,
    batch: dict[str, torch.Tensor],
    surviving: torch.Tensor,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    index = np.arange(len(surviving)) // GROUP_SIZE
    if variant.baseline == "all":
        return advantages(batch, variant.advantage, index, weights)
    index = _survivor_groups(surviving, batch["mask"], index)
    estimates = advantages(batch, variant.advantage, index)
    # verl hands a lone response its raw reward; with nobody to compare there is nothing to learn.
    counts = torch.from_numpy((index[:, None] == index[None]).sum(-1))
    return torch.where(counts[:, None] > 1, estimates, 0.0)


def _unequal_groups(rewards: torch.Tensor) -> torch.Tensor:
    """Mark the responses that verl's filter_groups keeps; it takes the others out of the batch."""
    return (rewards.view(-1, GROUP_SIZE).std(1) > 0).float().repeat_interleave(GROUP_SIZE)


class LocalsOf:
    """Keep the local variables with which a named function returned."""

    def __init__(self, function_name: str):
        """Watch calls of the function called `function_name` while the context is open."""
        self.name = function_name
        self.locals: dict[str, Any] = {}

    def _record(self, frame, event, _arg):
        if event == "return" and frame.f_code.co_name == self.name:
            self.locals = dict(frame.f_locals)

    def __enter__(self):
        """Start watching."""
        sys.setprofile(self._record)
        return self

    def __exit__(self, *_):
        """Stop watching."""
        sys.setprofile(None)


def loss(variant: VerlVariant, batch: dict[str, torch.Tensor]) -> tuple[np.ndarray, ...]:
    """Return -loss, its gradient in the log-probs, the sum of its absolute terms, and the clipped fraction.

    The sum of the absolute terms bounds what another order of summation may change.
    """
    weights, surviving = None, batch["mask"]
    if variant.correction:
        proto, surviving, _ = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(
            batch["logp_train"], batch["logp_infer"], batch["mask"], **variant.correction
        )
        weights = None if proto is None else proto.batch["rollout_is_weights"]
    if variant.filter_groups:
        surviving = surviving * _unequal_groups(batch["rewards"])[:, None]
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=GROUP_SIZE,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(**variant.policy_loss),
        clip_ratio_low=variant.clip[0],
        clip_ratio_high=variant.clip[1],
        clip_ratio_c=variant.dual_clip,
    )
    logp = batch["logp"].clone().requires_grad_()
    function = core_algos.get_policy_loss_fn(variant.mode)
    with LocalsOf(function.__name__) as seen:
        value, logged = function(
            batch["logp_train"],
            logp,
            _advantages_of(variant, batch, surviving, weights),
            surviving,
            variant.aggregation,
            config,
            weights,
        )
    terms = seen.locals["pg_losses"]
    slope, gradient = torch.autograd.grad(value, [terms, logp])
    magnitude = (slope * terms).abs().sum()
    clipped = sum(logged.get(f"actor/{name}", 0.0) for name in ("pg_clipfrac", "pg_clipfrac_lower"))
    return (
        -value.detach().numpy(),
        -gradient.numpy(),
        magnitude.detach().numpy(),
        np.asarray(clipped, np.float32),
    )


def extra_terms(batch: dict[str, torch.Tensor]) -> dict[str, tuple[np.float32, np.ndarray]]:
    """Return minus each KL penalty and minus the critic's loss, with its gradient.

    The reference policy is the inference engine here, and the critic moved as the policy did.
    """
    answers = {}
    for kind in ("k1", "abs", "k2", "k3"):
        logp = batch["logp"].clone().requires_grad_()
        penalty = core_algos.kl_penalty(logp, batch["logp_infer"], kind)
        value = core_algos.agg_loss(penalty, batch["mask"], "token-mean")
        answers[f"kl {kind}"] = (value, logp)
    values = (batch["values"] + batch["logp"] - batch["logp_train"]).requires_grad_()
    _, returns = core_algos.get_adv_estimator_fn("gae")(
        batch["token_rewards"], batch["values"], batch["mask"], gamma=1.0, lam=1.0
    )
    value, _ = core_algos.compute_value_loss(values, returns, batch["values"], batch["mask"], 0.5)
    answers["critic"] = (value, values)
    return {
        name: (-value.detach().numpy(), -torch.autograd.grad(value, leaf)[0].numpy())
        for name, (value, leaf) in answers.items()
    }


def _offpolicy_metrics(batch: dict[str, torch.Tensor]) -> dict[str, float]:
    """Every metric that verl logs about the two engines, under its own name."""
    three = (batch["logp_train"], batch["logp_infer"], batch["mask"])
    metrics = {}
    for name, rule in {**WEIGHTS, **REJECTIONS}.items():
        _, _, logged = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(*three, **rule)
        for key, value in logged.items():
            by_rule = key.startswith(("rollout_corr/rollout_is_", "rollout_corr/rollout_rs_"))
            metrics[f"{name}:{key}" if by_rule else key] = value
    proto = DataProto.from_dict(
        tensors={
            "rollout_log_probs": batch["logp_infer"],
            "old_log_probs": batch["logp_train"],
            "response_mask": batch["mask"],
            "responses": batch["mask"].long(),
        }
    )
    return metrics | calculate_debug_metrics(proto)


def goldens(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of `verl_losses.npz` and of `verl_metrics.npz`."""
    rng = np.random.default_rng(seed)
    batches = {
        "moderate": random_batch(rng),
        "wide": random_batch(rng, far=12.0),
        "extreme": random_batch(rng, far=100.0),
        "empty": random_batch(rng, empty=True),
    }
    losses: dict[str, Any] = {"names": np.array(list(VARIANTS)), "estimators": np.array(list(ESTIMATORS))}
    metrics: dict[str, Any] = {}
    for label, batch in batches.items():
        torched = tensors(batch)
        rows = [loss(variant, torched) for variant in VARIANTS.values()]
        index = np.arange(len(batch["rewards"])) // GROUP_SIZE
        estimates = [advantages(torched, name, index).numpy() for name in ESTIMATORS]
        columns = map(np.stack, zip(*rows, strict=True))
        results: dict[str, Any] = dict(
            zip(("value", "coefficients", "magnitude", "clipped"), columns, strict=True)
        )
        losses |= {f"{label}/{name}": array for name, array in (batch | results).items()}
        losses[f"{label}/advantages"] = np.stack(estimates)
        for name, (value, gradient) in extra_terms(torched).items():
            losses |= {f"{label}/{name} value": value, f"{label}/{name} gradient": gradient}
        if label in ("moderate", "extreme"):
            logged = _offpolicy_metrics(torched)
            metrics["names"] = np.array(list(logged))
            metrics[f"{label}/metrics"] = np.array(list(logged.values()), np.float64)
            metrics |= {f"{label}/{name}": batch[name] for name in ("logp_train", "logp_infer", "mask")}
    return losses, metrics


def main() -> None:
    """Write both files into the folder given by `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    losses, metrics = goldens(arguments.seed)
    np.savez_compressed(arguments.out / "verl_losses.npz", **losses)
    np.savez_compressed(arguments.out / "verl_metrics.npz", **metrics)


if __name__ == "__main__":
    main()
