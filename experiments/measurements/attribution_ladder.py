"""Attribute the mismatch of the flagship's engine to groups of sites: exact Shapley shares."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from experiments.measurements.gpu_pairs.measures import RESAMPLES, share_row
from experiments.regimes import BASE, WARM_STARTS
from experiments.studies.runs import SMOKE
from simlab.core.json_value import Json
from simlab.core.paths import checkout_root
from simlab.studies.attribution import between, differing, group_sites, shapley_rows, subsets
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.explain import ExplainTarget
from simlab.sweeps import recipe_of, run_config
from simlab.sweeps.start import load_initial_params

POLICIES: dict[str, dict[str, Json]] = {
    "flagship": {"warm_start": WARM_STARTS[0]},
    "dense": {"warm_start": "add-tiny-dense-0", "model": "tiny-dense"},
    "MoE": {"warm_start": "add-tiny-moe-0", "model": "tiny-moe"},
}
"""The first has no QK norm and was trained to be uncertain; the others were trained equally."""
_ROUNDED = {"weights": "e4m3fn"}
FEW_SITES = {"name": "f32/f32", "infer": {"projection": _ROUNDED, "lm_head": _ROUNDED}}
PROMPTS, SAMPLES = 16, 4
ROUND_OFF = 1e-9


def run(run: ExperimentContext) -> None:
    policies = {"flagship": {**SMOKE, "engines": FEW_SITES}} if run.smoke else POLICIES
    prompts = 2 if run.smoke else PROMPTS
    run.configure(
        engines=BASE["engines"], policies=policies, prompts=prompts, samples=SAMPLES, resamples=RESAMPLES
    )
    tables: dict[str, list[dict[str, Json]]] = {"size": [], "shares": [], "rungs": []}
    for name, changes in policies.items():
        with run.phase(name):
            measured = ladder(
                subject(changes, prompts, run.seeds([0])[0]), partial(run.track, description=name)
            )
        for table, rows in measured.items():
            tables[table] += [{"policy": name} | row for row in rows]
    for table, rows in tables.items():
        run.table(table, rows)


def subject(changes: Mapping[str, Json], prompts: int, seed: int) -> ExplainTarget:
    """Return a policy on held-out prompts under the engines of the regime."""
    config = run_config(BASE, {"objective": "grpo", **changes})
    recipe = recipe_of(config)
    params = load_initial_params(config.warm_start, recipe.task, recipe.model, seed, checkout_root())
    return ExplainTarget(params, recipe.model, recipe.task, recipe.engines, prompts, SAMPLES, seed)


def ladder(policy: ExplainTarget, track: Callable[[Iterable], Iterable]) -> dict[str, list[dict[str, Json]]]:
    """Score the same tokens under every engine between the two; engines differ in one group of sites.

    `shares`: fractions of the mean squared log rho by group: the Shapley share with its interval over
    prompts, the share of the group alone, and the share that vanishes without it. `rungs`: the mismatch
    after the group and all before it, in the order of `GROUPS`.
    """
    train, infer = policy.pair.train, policy.pair.infer
    groups = group_sites(differing(train, infer, policy.model))
    base, mask = policy.score(train), np.asarray(policy.sampled.mask)
    log_rho = {
        chosen: base - policy.score(between(train, infer, [s for group in chosen for s in groups[group]]))
        for chosen in track(subsets(list(groups)))
    }
    squares = {s: (each**2).reshape(policy.prompts, -1).sum(axis=1) for s, each in log_rho.items()}
    order = list(groups)
    shares = shapley_rows(squares.__getitem__, order, share_row)
    if abs(sum(row["share"] for row in shares.values()) - 1) > ROUND_OFF:
        raise ArithmeticError("the shares do not sum to the total")
    rungs = [
        {"rung": n, "group": "" if not n else order[n - 1]} | _mismatch(log_rho[frozenset(order[:n])][mask])
        for n in range(len(order) + 1)
    ]
    rewards = float(np.mean(np.asarray(policy.sampled.rewards)))
    size = {"tokens": int(mask.sum()), "reward": rewards} | _mismatch(log_rho[frozenset(order)][mask])
    return {
        "size": [size],
        "shares": [{"group": group} | row for group, row in shares.items()],
        "rungs": rungs,
    }


def _mismatch(log_rho: np.ndarray) -> dict[str, float]:
    return {"rms_log_rho": float(np.sqrt(np.mean(log_rho**2))), "std_rho": float(np.exp(log_rho).std())}


EXPERIMENT = Experiment(
    name="attribution_ladder",
    question="Which sites of the flagship's engine make its mismatch, in dense policies and with experts?",
    decision_rule=(
        "Measured, not judged: the Shapley value of each group of sites in the sum of squared log rho, a "
        "its 95% interval over prompts. The run fails unless the shares sum to the total within 1e-9."
    ),
    run=run,
    minutes=3.0,
)
