"""Equal to TRL 1.16, value and gradient, on the batches that `scripts/trl_goldens.py` drew.

OBJECTIVE_OF is the mapping from `GRPOConfig` (VARIANTS there) to simlab's presets and overrides. TRL clamps
no log ratio, so its batches stay within +-12, and it adds 1e-4 to the standard deviation of the rewards where
simlab and verl add 1e-6: the losses are compared on simlab's advantages, the advantages by themselves.
"""

from dataclasses import replace
from math import inf
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import ADVANTAGES, kl_penalty, prepare_batch, resolve
from tests.objectives.framework_comparison import (
    EPS,
    FACTORS,
    GROUP_SIZE,
    Case,
    Golden,
    assert_equal_to_round_off,
    batch_from,
    estimator_error,
    golden_from,
    worst,
)

BATCHES = ("moderate", "wide 2", "wide 6", "wide 12")
# vllm_importance_sampling_mode with clip_max 3 -> modifier.
CORRECTIONS = {
    "token_truncate": "tis",
    "token_mask": "mis",
    "sequence_truncate": "seq_tis",
    "sequence_mask": "seq_mis",
}
# loss_type bnpo is token-mean within one micro-batch, dapo over the whole step.
TOKEN_MEAN = {"aggregation": "token-mean"}
OBJECTIVE_OF = {
    "grpo": resolve("grpo"),
    "grpo delta 4": resolve("grpo", dual_clip=4.0),
    "bnpo": resolve("grpo", **TOKEN_MEAN),
    "dapo": resolve("dapo", dual_clip=inf, group_filter=False),
    "dr_grpo": resolve("dr_grpo", dual_clip=inf),
    "cispo": resolve("cispo", clip_low=1.0),
    "sapo": resolve("sapo"),
    "gspo": resolve("gspo"),
    "gspo_wide": resolve("gspo", clip_low=0.2, clip_high=0.2),
    "vespo": resolve("vespo", anchor="old"),
    "vespo+token_truncate": resolve("vespo"),
    "luspo": resolve("luspo"),
    "luspo_wide": resolve("luspo", clip_low=0.2, clip_high=0.2),
    "opsm": resolve("grpo+opsm", opsm_delta=0.05, aggregation="token-sum"),
    **{
        f"grpo+{mode}": resolve(f"grpo+{modifier}", correction_clip=3.0)
        for mode, modifier in CORRECTIONS.items()
    },
    **{
        f"bnpo+{mode}": resolve(f"grpo+{modifier}", correction_clip=3.0, **TOKEN_MEAN)
        for mode, modifier in CORRECTIONS.items()
    },
}


@pytest.fixture(scope="module")
def goldens():
    with np.load(Path(__file__).parent / "goldens" / "trl_losses.npz") as arrays:
        return dict(arrays)


def check_losses(arrays, name: str) -> None:
    """One variant on all batches; `test_trl_live` calls it with fresh goldens."""
    assert_equal_to_round_off(OBJECTIVE_OF[name], {label: case(arrays, label, name) for label in BATCHES})


def case(arrays, label: str, name: str) -> Case:
    """TRL's answer, adapted where simlab deviates on purpose."""
    batch, golden = batch_from(arrays, label), golden_from(arrays, label, name)
    if name == "opsm":
        # TRL zeroes the terms but keeps the denominators, B T for this loss: compare the sum over tokens.
        golden = Golden(*(part * np.float32(batch.logp.size) for part in vars(golden).values()))
    return Case(batch, golden, unclamped_weight(batch) if "sequence" in name else 0.0)


def unclamped_weight(batch) -> np.ndarray:
    """Where the product of rho is below exp(-20), that is simlab's weight; times the largest r, exp(12)."""
    log_rho = np.where(batch.mask, batch.logp_train - batch.logp_infer, 0).sum(1, keepdims=True)
    return np.where(log_rho < -20, np.exp(-20.0 + 12.0), 0.0)


def check_advantages(arrays, label: str) -> None:
    """TRL's advantages are ours but for 1e-4 beside the standard deviation instead of 1e-6."""
    batch = prepare_batch(batch_from(arrays, label))
    everybody = jnp.ones(len(batch.rewards), bool)
    std = np.repeat(np.asarray(batch.rewards).reshape(-1, GROUP_SIZE).std(1, ddof=1), GROUP_SIZE)
    for name, scale, factor in (("grpo", "group", (std + 1e-6) / (std + 1e-4)), ("grpo_no_std", "none", 1.0)):
        golden = arrays[f"{label}/advantages_{scale}"]
        ours = np.asarray(ADVANTAGES[name](batch, everybody)) * factor
        allowed = 2 * estimator_error(ADVANTAGES[name], batch, golden[:, None])[:, 0]
        worst(ours, golden, allowed, f"{name} advantage")


def check_corrected_kl(arrays, label: str) -> None:
    """Bias-corrected KL penalty, value and gradient; the terms are products of ratios of e^12 each."""
    batch = replace(batch_from(arrays, label), logp_reference=arrays[f"{label}/logp_infer"])
    value, slope = jax.value_and_grad(
        lambda logp: kl_penalty(replace(batch, logp=logp), "k3", bias_corrected=True)
    )(batch.logp)
    log_ratio = np.where(batch.mask != 0, batch.logp - batch.logp_infer, 0)
    ratio = np.where(batch.mask != 0, np.exp(batch.logp - batch.logp_train), 0)
    scale = ratio * (np.exp(-log_ratio) + np.abs(log_ratio) + 1) / np.sum(batch.mask)
    gradient = arrays[f"{label}/corrected_kl gradient"]
    worst(np.asarray(slope), gradient, 2 * FACTORS * EPS * scale, "corrected KL gradient")
    allowed = 2 * (FACTORS + scale.size) * EPS * scale.sum()
    worst(np.asarray(value), arrays[f"{label}/corrected_kl value"], np.asarray(allowed), "corrected KL")


def test_every_variant_of_the_script_has_an_objective(goldens):
    assert set(goldens["names"]) == set(OBJECTIVE_OF)


@pytest.mark.parametrize("name", OBJECTIVE_OF)
def test_value_and_coefficients_are_trls(goldens, name):
    check_losses(goldens, name)


@pytest.mark.parametrize("label", BATCHES)
def test_bias_corrected_kl_is_trls(goldens, label):
    check_corrected_kl(goldens, label)


@pytest.mark.parametrize("label", BATCHES)
def test_advantages_are_trls(goldens, label):
    check_advantages(goldens, label)
