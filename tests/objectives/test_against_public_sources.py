"""Equal in gradient to prime-rl, AReaL and NeMo-RL, whose rules `public_sources.py` restates in float64."""

from dataclasses import replace
from functools import partial
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import TokenBatch, kl_penalty, resolve
from simlab.objectives.corrections import Masked, Truncated, geometric_log_rho, sequence_log_rho
from tests.objectives import public_sources
from tests.objectives.batches import coefficients_of
from tests.objectives.public_sources import Columns

PPO = {"advantage": "reward", "aggregation": "token-mean"}
CLIPPED = resolve("grpo", **PPO, dual_clip=3.0)
UNCLIPPED_WEIGHT = {"advantage": "reward", "ratio_cap": inf, "rollout_kl_coefficient": 1e-3}
GEOMETRIC = replace(CLIPPED, correction=Masked(geometric_log_rho, (0.9, 1.1)))
CASES = {
    "prime-rl default": (
        public_sources.prime_rl_default,
        resolve("dppo_tv+rollout_kl", **UNCLIPPED_WEIGHT),
    ),
    "prime-rl ipo": (
        public_sources.prime_rl_ipo,
        resolve("ipo+rollout_kl", **UNCLIPPED_WEIGHT, divergence_bound=0.1),
    ),
    "prime-rl ipo of September": (
        partial(public_sources.prime_rl_ipo, threshold=0.3, kl_tau=0.0),
        resolve("ipo", advantage="reward"),
    ),
    "AReaL mask": (
        partial(public_sources.areal, lower=0.5, upper=1.6),
        resolve("ppo+icepop", **PPO, correction_clip=(0.5, 1.6)),
    ),
    "AReaL clamp": (
        partial(public_sources.areal, action="clamp", lower=0.7, upper=1.6),
        resolve("ppo+tis", **PPO, correction_clip=(0.7, 1.6)),
    ),
    "AReaL mask of sequences": (
        partial(public_sources.areal, level="sequence", lower=0.9, upper=1.1),
        GEOMETRIC,
    ),
    "AReaL clamp of sequences": (
        partial(public_sources.areal, level="sequence", action="clamp", lower=0.9, upper=1.1),
        replace(CLIPPED, correction=Truncated(geometric_log_rho, (0.9, 1.1))),
    ),
    "AReaL GSPO": (
        partial(public_sources.areal, metric=None, sequence=True, c_clip=None),
        resolve("gspo", **PPO, clip_low=0.2, clip_high=0.2),
    ),
    "AReaL binary_kl": (
        partial(public_sources.areal, metric="binary_kl", upper=0.02),
        resolve("ppo+kpop", **PPO, kpop_bound=0.02),
    ),
    "AReaL m2": (
        public_sources.areal_m2,
        resolve("ppo+m2_mask", **PPO, baseline="all"),
    ),
    "NeMo-RL": (public_sources.nemo_rl, resolve("grpo", **PPO)),
    "NeMo-RL dual clip": (partial(public_sources.nemo_rl, c_clip=3.0), CLIPPED),
    "NeMo-RL tis": (
        partial(public_sources.nemo_rl, kind="tis", high=1.5),
        resolve("grpo+tis", **PPO, correction_clip=1.5),
    ),
    "NeMo-RL icepop": (
        partial(public_sources.nemo_rl, kind="icepop", low=0.5, high=5.0),
        resolve("grpo+icepop", **PPO),
    ),
    "NeMo-RL CISPO": (
        partial(public_sources.nemo_rl, cispo=True),
        resolve("cispo", advantage="reward"),
    ),
    "NeMo-RL GSPO": (
        public_sources.nemo_rl_gspo,
        replace(
            resolve("gspo", advantage="reward", clip_low=0.2, clip_high=0.2),
            correction=Truncated(sequence_log_rho, inf),
        ),
    ),
}


def batch_of(seed: int) -> tuple[TokenBatch, Columns]:
    """Draw eight responses of up to six tokens, one of them empty; no rule is near a bound by chance."""
    rng = np.random.default_rng(seed)
    shape = (8, 6)
    q = -rng.exponential(0.7, shape) - 0.02
    p, mu, ref = (np.minimum(q + scale * rng.normal(size=shape), -0.01) for scale in (0.4, 0.3, 0.5))
    lengths = rng.integers(1, 7, 8)
    lengths[3] = 0
    mask = np.arange(6) < lengths[:, None]
    a = rng.normal(size=8)
    p, q, mu, ref = (np.float32(x) for x in (p, q, mu, ref))
    batch = TokenBatch(
        logp=jnp.asarray(p),
        logp_train=jnp.asarray(q),
        logp_infer=jnp.asarray(mu),
        rewards=jnp.asarray(a, jnp.float32),
        mask=jnp.asarray(mask),
        group_size=4,
        logp_reference=jnp.asarray(ref),
    )
    wide = [np.asarray(x, np.float64) for x in (p, q, mu, ref)]
    return batch, Columns(*wide, a=np.asarray(batch.rewards, np.float64), mask=mask)


def assert_equal(found: jax.Array, expected: np.ndarray) -> None:
    # float32 sums of up to 48 terms and some twenty roundings.
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_the_source(name):
    oracle, objective = CASES[name]
    for seed in range(4):
        batch, columns = batch_of(seed)
        assert_equal(coefficients_of(objective, batch), oracle(columns))


def test_rules_differ_on_these_batches():
    """No two sources agree, so that a case cannot pass with another's objective."""
    _, columns = batch_of(0)
    found = np.stack([oracle(columns) for oracle, _ in CASES.values()])
    same = [np.abs(found - one).max(axis=(1, 2)) < 1e-4 for one in found]
    # The dual clip acts beyond a ratio of 3, which no token of the batch has.
    dual = [list(CASES).index(name) for name in ("NeMo-RL", "NeMo-RL dual clip")]
    assert {tuple(np.flatnonzero(row)) for row in same} - {tuple(dual)} == {
        (i,) for i in range(len(CASES)) if i not in dual
    }


@pytest.mark.parametrize("on_policy", [True, False])
def test_kl_gradient_is_that_of_nemo_rl(on_policy):
    batch, columns = batch_of(5)
    # Its weight is p / mu, or one that keeps its gradient; simlab's is p / q.
    anchored = replace(batch, logp_train=batch.logp_infer if on_policy else batch.logp)
    found = jax.grad(lambda x: kl_penalty(replace(anchored, logp=x), "k3", bias_corrected=True))(batch.logp)
    assert_equal(found, public_sources.nemo_rl_kl(columns, on_policy=on_policy))
