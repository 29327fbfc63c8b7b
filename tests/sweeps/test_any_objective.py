"""The shared form of an objective has the coefficients of the objective itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import OBJECTIVES, SUFFIXES, Objective, named, resolve
from simlab.sweeps.any_objective import PICKED, AnyObjective, shared
from tests.objectives.batches import coefficients_of, random_batch

BATCH = dataclasses.replace(random_batch(3), key=jax.random.key(5))
# Every other sequence without mismatch, so that the masks keep some.
AGREES = (jnp.arange(8) % 2 == 0)[:, None]
BATCH = dataclasses.replace(BATCH, logp_infer=jnp.where(AGREES, BATCH.logp_train, BATCH.logp_infer))
PLAIN = [name for name, found in OBJECTIVES.items() if "values" not in getattr(found.advantage, "needs", ())]
COMPOSED = [f"grpo+{suffix}" for suffix in SUFFIXES if suffix != "score_centering"] + [
    "gspo_bias+seq_mis+k3_mask+opsm",
    "dfpo_min+geo_mask+tis",
]


@pytest.mark.parametrize("name", PLAIN + COMPOSED)
def test_coefficients_are_those_of_the_objective(name):
    found = shared(named(name))
    assert isinstance(found, AnyObjective)
    # 4 ulp of the largest coefficient: the same products, which the compiler may reorder.
    expected = np.asarray(coefficients_of(name, BATCH))
    actual = np.asarray(coefficients_of(found, BATCH))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=4 * 2.0**-24 * np.abs(expected).max())
    assert np.abs(expected).max() > 0


def test_overrides_and_switches_come_along():
    batch = dataclasses.replace(random_batch(4), key=jax.random.key(5))
    # A group whose rewards agree is what the filter drops and what has a baseline of its own.
    batch = dataclasses.replace(batch, rewards=batch.rewards.at[:4].set(1.0))
    overrides = {"clip_high": 0.01, "group_filter": True, "advantage": "reward", "aggregation": "token-sum"}
    changed = resolve("grpo", **overrides)
    expected = coefficients_of(changed, batch)
    np.testing.assert_allclose(coefficients_of(shared(changed), batch), expected, atol=1e-6)
    assert (np.asarray(expected)[:4] == 0).all()
    assert (np.asarray(expected)[4:] != 0).any()
    kept = resolve("rloo+geo_mask", baseline="all", rejection_bounds=(0.8, 1.1))
    np.testing.assert_allclose(coefficients_of(shared(kept), batch), coefficients_of(kept, batch), atol=1e-6)


def test_all_share_one_structure_and_map_side_by_side():
    found = [shared(named(name)) for name in PLAIN + COMPOSED]
    assert len({jax.tree.structure(objective) for objective in found}) == 1
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *found[:4])
    side_by_side = jax.vmap(lambda objective: coefficients_of(objective, BATCH))(stacked)
    for row, objective in zip(side_by_side, found[:4], strict=True):
        np.testing.assert_allclose(row, coefficients_of(objective, BATCH), atol=1e-6)


def test_what_the_catalog_does_not_hold_keeps_its_own_program():
    assert isinstance(shared(named("ppo")), Objective)  # its advantages read a critic
    pair = resolve("grpo+tis", correction_clip=(0.5, 2.0))
    assert isinstance(shared(pair), Objective)
    assert shared(named("ppo")).source == ""
    assert isinstance(shared(named("gpg+score_centering")), Objective)


def test_every_stage_of_an_objective_is_accounted_for():
    others = {"rejections", "regularizers", "centering", "group_filter", "baseline", "source"}
    assert {field.name for field in dataclasses.fields(Objective)} == set(PICKED) | others
