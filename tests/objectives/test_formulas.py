"""Every objective and mask of 2026 against `formulas.py`, on batches with padding and extreme ratios."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simlab.objectives import TokenBatch
from tests.objectives import formulas
from tests.objectives.batches import coefficients_of

GROUP_SIZE, TOKENS = 4, 5
# Between the engines and from theta_old to theta; the last makes every clamp act.
SCALES = (0.02, 0.3, 2.0, 25.0)
BOUNDED = dict.fromkeys(("divergence_low", "divergence_high", "divergence_bound"), (0.01, 0.6))
BOUNDED |= {"ratio_cap": (0.5, 5.0), "kpop_bound": (0.01, 2.0), "m2_threshold": (1e-4, 1.0)}
BOUNDED |= {"drpo_delta": (0.5, 20.0), "dro_beta": (0.0, 1.0), "clip_low": (1e-3, 0.5)}
BOUNDED |= {"clip_high": (1e-3, 0.5), "kl_cov_ratio": (0.0, 1.0), "kl_cov_coefficient": (0.0, 2.0)}
BOUNDED |= {"vaco_bound": (0.01, 1.0), "correction_clip": (0.5, 5.0), "rejection_bounds": (1e-3, 2.0)}
BOUNDED |= {"rollout_kl_coefficient": (0.0, 1.0), "cov_low": (-1.0, 1.0), "cov_high": (1.0, 5.0)}
BOUNDED |= dict.fromkeys(("vespo_k_positive", "vespo_k_negative"), (0.5, 4.0))
BOUNDED |= dict.fromkeys(("vespo_lambda_positive", "vespo_lambda_negative"), (0.5, 4.0))
OVERRIDES = {
    "dppo_tv": ("divergence_low", "divergence_high", "ratio_cap"),
    "dppo_kl": ("divergence_low", "divergence_high", "ratio_cap"),
    "ipo": ("divergence_bound", "ratio_cap"),
    "kpop": ("kpop_bound",),
    "drpo": ("drpo_delta",),
    "vespo": (*(name for name in BOUNDED if name.startswith("vespo")), "ratio_cap"),
    "luspo": ("clip_low", "clip_high"),
    "m2po": ("m2_threshold",),
    "gpg": (),
    "dro": ("dro_beta",),
    "clip_cov": ("cov_low", "cov_high", "clip_low", "clip_high"),
    "kl_cov": ("kl_cov_ratio", "kl_cov_coefficient"),
    "gpg+kpop": ("kpop_bound",),
    "gpg+vaco": ("vaco_bound", "correction_clip"),
    "gpg+kpop_mask": ("kpop_bound",),
    "gpg+m2_mask": ("m2_threshold",),
    "gpg+prob_diff": (),
    "gpg+trm": ("rejection_bounds",),
    "gpg+rollout_kl": ("rollout_kl_coefficient",),
}
ANCHORED = ("dppo_tv", "dppo_kl", "ipo", "kpop", "drpo", "vespo")


def oracle_of(name: str):
    base, _, modifier = name.partition("+")
    return formulas.MODIFIERS[modifier] if modifier else formulas.PRESETS[base]


def test_every_formula_is_compared():
    assert {oracle_of(name) for name in OVERRIDES} == {
        *formulas.PRESETS.values(),
        *formulas.MODIFIERS.values(),
    }


@st.composite
def batches(draw) -> TokenBatch:
    """Two groups with ragged or empty responses, rewards of both signs, and probabilities up to one."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (2 * GROUP_SIZE, TOKENS)
    lengths = rng.integers(draw(st.sampled_from([0, 1, TOKENS])), TOKENS + 1, shape[0])
    logp_train = -rng.exponential(draw(st.sampled_from([0.1, 1.0, 4.0])), shape)
    moved, apart = (draw(st.sampled_from(SCALES)) * rng.normal(size=shape) for _ in range(2))
    rewards = rng.choice([-1.0, 0.0, 0.25, 1.0], shape[0])
    lengths[0], rewards[:2] = TOKENS, (0.0, 1.0)

    real = np.arange(TOKENS) < lengths[:, None]

    def column(x):
        return jnp.asarray(np.where(real, np.minimum(x, -1e-3), np.nan), jnp.float32)

    return TokenBatch(
        logp=column(logp_train + moved),
        logp_train=column(logp_train),
        logp_infer=column(logp_train + apart),
        rewards=jnp.asarray(rewards, jnp.float32),
        mask=jnp.asarray(real),
        group_size=GROUP_SIZE,
    )


def columns_of(batch: TokenBatch, numbers: dict) -> formulas.Columns:
    mask = np.asarray(batch.mask)
    p, q, mu = (np.where(mask, np.float64(x), 0.0) for x in (batch.logp, batch.logp_train, batch.logp_infer))
    return formulas.Columns(p, q, mu, np.float64(batch.rewards), mask, GROUP_SIZE, numbers)


def numbers_of(draw, name: str) -> dict:
    """Draw some of the overrides; the others keep their documented defaults."""
    numbers: dict = {}
    for override in OVERRIDES[name]:
        if draw(st.booleans()):
            numbers[override] = float(np.float32(draw(st.floats(*BOUNDED[override]))))
    if name == "clip_cov":
        numbers["cov_ratio"] = 1.0
    if name == "gpg+prob_diff" and draw(st.booleans()):
        numbers["prob_diff_bounds"] = (-0.5, 0.05)
    return numbers


@pytest.mark.parametrize("name", OVERRIDES)
@given(data=st.data())
@settings(max_examples=40)
def test_coefficients_are_the_published_formula(name, data):
    batch = data.draw(batches())
    numbers = numbers_of(data.draw, name)
    choices = {"advantage": "grpo"} if "+" in name else {}
    if name in ANCHORED:
        choices["anchor"] = data.draw(st.sampled_from(["rollout", "old"]))
    columns = columns_of(batch, numbers | choices)
    expected = oracle_of(name)(columns)
    assume(columns.margin > 1e-4)
    found = np.asarray(coefficients_of(name, batch, **numbers, **choices))
    assert (found[~columns.mask] == 0).all()
    # float32 exponentials of up to 60 are good to 60 * 2^-24; sums of terms of both signs to the largest.
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max() + 1e-30)
