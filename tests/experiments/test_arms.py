"""Arms against each other: what a contrast attributes to one change must not be due to another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.arms.changes import at_mean_rate, with_halving
from experiments.papers import lr
from experiments.regimes import BASE
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.sweeps import recipe_of, run_config


@pytest.mark.parametrize("treated", [lr.MIS, lr.RLOO_MIS])
def test_halving_is_compared_with_a_constant_rate_of_equal_mean(treated):
    means = []
    for arm in (with_halving(treated), at_mean_rate(treated)):
        recipe = recipe_of(run_config(BASE, {**arm.changes, "steps": arm.steps}))
        factors = np.asarray(jax.vmap(recipe.schedule)(jnp.arange(arm.steps)))
        means.append(float(recipe.optimizer.learning_rate) * factors.mean(dtype=float))
    assert means[0] == pytest.approx(means[1], rel=1e-5)


@pytest.mark.parametrize(("experiment", "treated"), [("lr_dynamics", lr.MIS), ("lr_on_policy", lr.RLOO_MIS)])
def test_the_stored_runs_had_the_same_mean_rate(experiment, treated):
    results = Results(committed_results(experiment))
    runs = results.table("runs").set_index("run")
    factors = results.table("chunks").groupby("run")["learning_rate_factor"].mean()
    means = (runs["learning_rate"] * factors).groupby(runs["arm"]).mean()
    assert means[with_halving(treated).id] == pytest.approx(means[at_mean_rate(treated).id], rel=1e-5)
