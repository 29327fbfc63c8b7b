"""Equal to verl 0.9.1, value and gradient, on the batches that `scripts/verl_goldens.py` drew.

OBJECTIVE_OF is the mapping from what verl is told there (VARIANTS) to simlab's presets and overrides.
"""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import ADVANTAGES, Objective, prepare_batch, resolve, token_coefficients
from simlab.objectives.advantages import Gae
from simlab.objectives.corrections import Masked, Truncated, sequence_log_rho, token_log_rho
from simlab.objectives.extras import KL_ESTIMATORS, critic_penalty, kl_penalty
from simlab.objectives.rejection import DivergenceCap, RatioBand, k2, k3, seq_max, seq_mean, seq_sum, token
from tests.objectives import formulas
from tests.objectives.framework_comparison import (
    EPS,
    FACTORS,
    Case,
    Golden,
    answers,
    assert_equal_to_round_off,
    batch_from,
    estimator_error,
    golden_from,
    worst,
)

BATCHES = ("moderate", "wide", "extreme", "empty")
# algorithm.rollout_correction.rollout_is, rollout_is_threshold -> correction
WEIGHTS = {
    "token_tis": Truncated(token_log_rho, 2.0),
    "token_tis_5": Truncated(token_log_rho, 5.0),
    "token_mis": Masked(token_log_rho, 2.0),
    "token_icepop": Masked(token_log_rho, (0.5, 5.0)),
    "seq_tis": Truncated(sequence_log_rho, 2.0),
    "seq_mis": Masked(sequence_log_rho, 2.0),
    "seq_icepop": Masked(sequence_log_rho, (0.5, 5.0)),
}
# algorithm.rollout_correction.rollout_rs, rollout_rs_threshold -> rejection
REJECTIONS = {
    "token_k1": RatioBand(token, (0.8, 1.2)),
    "token_k2": DivergenceCap(k2, token, 0.05),
    "token_k3": DivergenceCap(k3, token, 0.05),
    "seq_sum_k1": RatioBand(seq_sum, (0.5, 1.2)),
    "seq_sum_k2": DivergenceCap(k2, seq_sum, 0.1),
    "seq_sum_k3": DivergenceCap(k3, seq_sum, 0.1),
    "seq_mean_k1": RatioBand(seq_mean, (0.9, 1.1)),
    "seq_mean_k2": DivergenceCap(k2, seq_mean, 0.02),
    "seq_mean_k3": DivergenceCap(k3, seq_mean, 0.01),
    "seq_max_k2": DivergenceCap(k2, seq_max, 0.1),
    "seq_max_k3": DivergenceCap(k3, seq_max, 0.1),
}
GPG = resolve("gpg", advantage="grpo")
GRPO = resolve("grpo")


# Losses on which token TIS is compared, too.
NEW = {
    "dppo_tv": resolve("dppo_tv", anchor="old"),
    "dppo_kl": resolve("dppo_kl", anchor="old"),
    "dro": resolve("dro"),
    "clip_cov": resolve("clip_cov", cov_ratio=1.0),
    "kl_cov": resolve("kl_cov"),
    "gpg otb": resolve("gpg", advantage="otb"),
    "gpg otb_full_tail": resolve("gpg", advantage="otb_full_tail"),
}
# verl overflows where simlab bounds log r; see wide_ratio and GeometricMean.
OVERFLOWING = ("gmpo", "clip_cov", "kl_cov")


def with_rejection(objective: Objective, name: str, baseline: str = "all") -> Objective:
    """verl lets a rejected sibling stay in the baseline."""
    return replace(objective, rejections=(REJECTIONS[name],), baseline=baseline)


# verl variant -> simlab's objective.
OBJECTIVE_OF = {
    "reinforce": resolve("reinforce"),
    "rloo": resolve("rloo"),
    "ppo": resolve("ppo"),
    "grpo": GRPO,
    "dr_grpo": resolve("dr_grpo"),
    "dapo": resolve("dapo"),
    "gspo": resolve("gspo"),
    "gspo_wide": resolve("gspo", clip_low=0.2, clip_high=0.2),
    "gmpo": resolve("gmpo"),
    "cispo": resolve("cispo"),
    "sapo": resolve("sapo"),
    "gpg": GPG,
    "gpg gpg": resolve("gpg"),
    **NEW,
    **{
        f"grpo {mode}": resolve("grpo", aggregation=mode)
        for mode in (
            "token-mean",
            "token-sum",
            "seq-mean-token-sum",
            "seq-mean-token-sum-norm",
            "seq-mean-token-mean",
        )
    },
    **{f"grpo+{name}": replace(GRPO, correction=correction) for name, correction in WEIGHTS.items()},
    **{f"{loss}+token_tis": resolve(f"{loss}+tis") for loss in ("gspo", "gmpo", "cispo", "sapo")},
    **{f"{loss}+seq_tis": resolve(f"{loss}+seq_tis") for loss in ("gspo", "gmpo", "cispo", "sapo")},
    **{f"gpg+{name}": replace(GPG, correction=WEIGHTS[name]) for name in ("token_tis", "seq_tis")},
    "dppo_tv cap 3": resolve("dppo_tv", anchor="old", ratio_cap=3.0),
    "kl_cov tenth": resolve("kl_cov", kl_cov_ratio=0.1),
    **{f"{name}+token_tis": replace(found, correction=WEIGHTS["token_tis"]) for name, found in NEW.items()},
    **{f"{name}+seq_tis": replace(found, correction=WEIGHTS["seq_tis"]) for name, found in NEW.items()},
    **{f"grpo+{name}": with_rejection(GRPO, name) for name in REJECTIONS},
    "grpo+seq_mean_k1 token-mean": with_rejection(resolve("grpo", aggregation="token-mean"), "seq_mean_k1"),
    "grpo+seq_mean_k1 survivors": with_rejection(GRPO, "seq_mean_k1", baseline="survivors"),
    "gspo+token_k1": with_rejection(resolve("gspo"), "token_k1"),
    "grpo+token_tis+seq_mean_k1": with_rejection(resolve("grpo+tis"), "seq_mean_k1"),
}
ESTIMATOR_OF = {
    **{name: ADVANTAGES[name] for name in ("grpo", "grpo_no_std", "rloo", "whitened", "gae", "gpg")},
    **{name: ADVANTAGES[name] for name in ("otb", "otb_full_tail")},
    "gae_discounted": Gae(gamma=0.97, lam=0.9),
    "remax": ADVANTAGES["reward"],
}
# Presets with their modifier, beside the records above that say the same in full.
SUFFIXED = {
    "grpo+token_tis": "grpo+tis",
    "grpo+token_mis": "grpo+mis",
    "grpo+token_icepop": "grpo+icepop",
    "grpo+seq_tis": "grpo+seq_tis",
    "grpo+seq_mis": "grpo+seq_mis",
}


@pytest.fixture(scope="module")
def goldens():
    with np.load(Path(__file__).parent / "goldens" / "verl_losses.npz") as arrays:
        return dict(arrays)


def expected(arrays, label: str, name: str) -> Golden:
    """verl's answer, adapted where simlab deviates on purpose."""
    golden = golden_from(arrays, label, name)
    if label == "empty" and name.startswith("gmpo"):
        # verl's geo_mean divides by all sequences, its other losses (and ours) by those with tokens.
        rows = golden.coefficients.shape[0]
        return Golden(*(part * rows / (rows - 1) for part in vars(golden).values()))
    if np.isnan(golden.value):
        # Everything was rejected: verl divides zero by zero.
        return Golden(np.float32(0), np.zeros_like(golden.coefficients), np.float32(0))
    return golden


def check_losses(arrays, name: str) -> None:
    """One variant on all batches; `test_verl_live` calls it with fresh goldens."""
    cases = {label: case(arrays, label, name) for label in BATCHES}
    skip = ("extreme",) if name.startswith(OVERFLOWING) else ()
    assert_equal_to_round_off(OBJECTIVE_OF[name], cases, skip)


def case(arrays, label: str, name: str) -> Case:
    """One batch; a response that outweighs its group leaves a difference of equal numbers as advantage."""
    batch, absolute = batch_from(arrays, label), 0.0
    if "otb_full_tail" in name:
        error = estimator_error(ADVANTAGES["otb_full_tail"], prepare_batch(batch), np.zeros(batch.mask.shape))
        absolute = float(2 * error.max() / batch.mask.sum())
    elif "otb" in name:
        absolute = float(2 * FACTORS * EPS * np.abs(np.asarray(batch.rewards)).max() / batch.mask.sum())
    return Case(batch, expected(arrays, label, name), absolute=absolute)


def check_advantages(arrays, label: str) -> None:
    """All estimators on one batch."""
    batch = prepare_batch(batch_from(arrays, label))
    for name, given in zip(arrays["estimators"], arrays[f"{label}/advantages"], strict=True):
        estimator = ESTIMATOR_OF[name]
        ours = np.asarray(estimator(batch, jnp.ones(len(batch.rewards), bool)))
        ours = np.where(batch.mask, ours if ours.ndim == 2 else ours[:, None], 0)
        golden = np.where(batch.mask, given, 0)
        worst(ours, golden, 2 * estimator_error(estimator, batch, golden), f"{name} advantage")


def check_extra_terms(arrays, label: str) -> None:
    """KL penalties to a reference and the critic's loss on one batch, value and gradient."""
    batch = batch_from(arrays, label)
    batch = replace(batch, logp_reference=batch.logp_infer)
    real, count = batch.mask != 0, batch.mask.sum()
    difference = np.where(real, batch.logp - batch.logp_infer, 0)
    # The largest numbers that are added on the way to a penalty; beyond 5 k3 is cut to 10.
    penalty_scale = np.where(
        real, 1 + np.abs(difference) + difference**2 + np.exp(np.clip(-difference, -5, 5)), 0
    )
    values = batch.values + batch.logp - batch.logp_train
    # The returns are sums over the tokens.
    value_scale = np.where(real, (np.abs(values) + np.abs(batch.values).max() + 1) * batch.mask.shape[1], 0)
    for kind in KL_ESTIMATORS:
        value, slope = jax.value_and_grad(lambda x, kind=kind: kl_penalty(replace(batch, logp=x), kind))(
            batch.logp
        )
        _check_term(
            arrays, f"{label}/kl {kind}", value, slope, penalty_scale / count, penalty_scale.sum() / count
        )
    value, slope = jax.value_and_grad(lambda x: critic_penalty(x, batch))(values)
    _check_term(arrays, f"{label}/critic", value, slope, value_scale / count, (value_scale**2).sum() / count)


def _check_term(arrays, key: str, value, slope, slope_scale, value_scale) -> None:
    value_bound = 2 * (FACTORS + slope.size) * EPS * np.asarray(value_scale)
    worst(np.asarray(slope), arrays[f"{key} gradient"], 2 * FACTORS * EPS * slope_scale, f"{key} gradient")
    worst(np.asarray(value), arrays[f"{key} value"], value_bound, f"{key} value")


def test_every_variant_of_the_script_has_an_objective(goldens):
    assert set(goldens["names"]) == set(OBJECTIVE_OF)
    assert set(goldens["estimators"]) == set(ESTIMATOR_OF)


@pytest.mark.parametrize("name", OBJECTIVE_OF)
def test_value_and_coefficients_are_verls(goldens, name):
    check_losses(goldens, name)


@pytest.mark.parametrize("label", BATCHES)
def test_advantages_are_verls(goldens, label):
    check_advantages(goldens, label)


@pytest.mark.parametrize("label", BATCHES)
def test_extra_terms_are_verls(goldens, label):
    check_extra_terms(goldens, label)


@pytest.mark.parametrize("name", SUFFIXED)
def test_modifiers_build_the_record_that_was_compared(name):
    assert resolve(SUFFIXED[name]) == OBJECTIVE_OF[name]


def test_the_comparison_sees_a_wrong_clip(goldens):
    cases = {label: Case(batch_from(goldens, label), expected(goldens, label, "grpo")) for label in BATCHES}
    with pytest.raises(AssertionError, match="wide: coefficient"):
        assert_equal_to_round_off(resolve("grpo", dual_clip=3.0), cases)


@pytest.mark.parametrize("share", [1 - 2.0**-12, 1.0])
def test_round_off_where_the_terms_of_dro_cancel(goldens, share):
    batch, dro = batch_from(goldens, "wide"), OBJECTIVE_OF["dro"]
    advantages, beta = answers(dro, [batch])[2][0], dro.surrogate.dro_beta
    batch = replace(batch, logp=np.float32(batch.logp_train + share * advantages / beta))
    p, q, mu = (
        np.where(batch.mask, np.float64(x), 0) for x in (batch.logp, batch.logp_train, batch.logp_infer)
    )
    columns = formulas.Columns(p, q, mu, np.float64(batch.rewards), batch.mask != 0, batch.group_size, {})
    value = (columns.token_mean(columns.grpo() * p - beta / 2 * (p - q) ** 2)).sum()
    magnitude = (columns.token_mean(np.abs(columns.grpo() * p) + beta / 2 * (p - q) ** 2)).sum()
    exact = Golden(value, formulas.dro(columns), magnitude)
    assert_equal_to_round_off(dro, {"cancelling": Case(batch, exact)})
    scale = np.abs(columns.token_mean(columns.grpo() * batch.mask))
    shifted = replace(exact, coefficients=exact.coefficients + 1e-4 * scale)
    with pytest.raises(AssertionError, match="cancelling: coefficient"):
        assert_equal_to_round_off(dro, {"cancelling": Case(batch, shifted)})


def test_token_coefficients_are_the_gradient_that_was_compared(goldens):
    batches = [batch_from(goldens, label) for label in BATCHES]
    _, coefficients, _ = answers(GRPO, batches)
    # The same operations, with and without a batch axis.
    np.testing.assert_allclose(token_coefficients(GRPO, batches[1]), coefficients[1], rtol=FACTORS * EPS)
