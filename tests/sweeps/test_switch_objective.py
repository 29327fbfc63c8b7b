"""A `SwitchObjective` has the coefficients of the objective that it was made from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import OBJECTIVE_MODIFIERS, OBJECTIVES, Objective, get_objective, resolve
from simlab.sweeps.switch_objective import SWITCHED, SwitchObjective, as_switch_objective
from tests.objectives.batches import coefficients_of, random_batch

BATCH = dataclasses.replace(random_batch(3), key=jax.random.key(5))
# Every other sequence without mismatch, so that the masks keep some.
AGREES = (jnp.arange(8) % 2 == 0)[:, None]
BATCH = dataclasses.replace(BATCH, logp_infer=jnp.where(AGREES, BATCH.logp_train, BATCH.logp_infer))
PLAIN = [name for name, found in OBJECTIVES.items() if "values" not in getattr(found.advantage, "needs", ())]
COMPOSED = [f"grpo+{modifier}" for modifier in OBJECTIVE_MODIFIERS if modifier != "score_centering"] + [
    "gspo_bias+seq_mis+k3_mask+opsm",
    "dfpo_min+geo_mask+tis",
]


@pytest.mark.parametrize("name", PLAIN + COMPOSED)
def test_switch_objective_keeps_coefficients(name):
    found = as_switch_objective(get_objective(name))
    assert isinstance(found, SwitchObjective)
    # 4 ulp of the largest coefficient: the same products, which the compiler may reorder.
    expected = np.asarray(coefficients_of(name, BATCH))
    actual = np.asarray(coefficients_of(found, BATCH))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=4 * 2.0**-24 * np.abs(expected).max())
    assert np.abs(expected).max() > 0


def test_switch_objective_keeps_overrides():
    batch = dataclasses.replace(random_batch(4), key=jax.random.key(5))
    # A group whose rewards agree is what the filter drops and what has a baseline of its own.
    batch = dataclasses.replace(batch, rewards=batch.rewards.at[:4].set(1.0))
    overrides = {"clip_high": 0.01, "group_filter": True, "advantage": "reward", "aggregation": "token-sum"}
    changed = resolve("grpo", **overrides)
    expected = coefficients_of(changed, batch)
    np.testing.assert_allclose(coefficients_of(as_switch_objective(changed), batch), expected, atol=1e-6)
    assert (np.asarray(expected)[:4] == 0).all()
    assert (np.asarray(expected)[4:] != 0).any()
    kept = resolve("rloo+geo_mask", baseline="all", rejection_bounds=(0.8, 1.1))
    actual = coefficients_of(as_switch_objective(kept), batch)
    np.testing.assert_allclose(actual, coefficients_of(kept, batch), atol=1e-6)


SORTED = {"m2po", "kpop", "clip_cov", "kl_cov", "grpo+kpop", "grpo+kpop_mask", "grpo+m2_mask"}


def test_switch_objectives_have_one_structure_unless_they_sort():
    found = {name: as_switch_objective(get_objective(name)) for name in PLAIN + COMPOSED}
    structures = {jax.tree.structure(objective) for objective in found.values()}
    assert len(structures) == len({objective.alternatives for objective in found.values()}) == 2
    assert {name for name, objective in found.items() if objective.alternatives == "all"} == SORTED
    found = [objective for objective in found.values() if objective.alternatives == "common"]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *found[:4])
    side_by_side = jax.vmap(lambda objective: coefficients_of(objective, BATCH))(stacked)
    for row, objective in zip(side_by_side, found[:4], strict=True):
        np.testing.assert_allclose(row, coefficients_of(objective, BATCH), atol=1e-6)


def test_objective_outside_the_catalog_is_unchanged():
    assert isinstance(as_switch_objective(get_objective("ppo")), Objective)  # its advantages read a critic
    pair = resolve("grpo+tis", correction_clip=(0.5, 2.0))
    assert isinstance(as_switch_objective(pair), Objective)
    assert as_switch_objective(get_objective("ppo")).source == ""
    assert isinstance(as_switch_objective(get_objective("gpg+score_centering")), Objective)


def test_switch_objective_covers_every_stage():
    others = {"rejections", "regularizers", "centering", "group_filter", "baseline", "source"}
    assert {field.name for field in dataclasses.fields(Objective)} == set(SWITCHED) | others
