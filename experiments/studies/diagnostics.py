"""Diagnostics of a run between its steps, computed on the next rollout."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from experiments.arms.changes import NEAREST, NEAREST_E4M3
from experiments.regimes import BASE
from simlab.engines import Engine, find_engine
from simlab.engines.constant import ConstantEngine
from simlab.metrics import METRICS, OBJECTIVE_METRICS, energy_by_frequency
from simlab.models.parameters import Params
from simlab.objectives import TokenBatch, get_objective, token_coefficients
from simlab.objectives.batch import by_group, masked_mean
from simlab.objectives.objective import with_overrides
from simlab.objectives.ratios import SignAwareClip
from simlab.rollout.trajectory import Trajectory
from simlab.sweeps import recipe_of, run_config
from simlab.training.diagnostics import DIAGNOSTICS, DiagnosticContext, score_norms
from simlab.training.evaluation import evaluate, rewards_by_prompt
from simlab.training.step import learn, score

Diagnostic = Callable[[DiagnosticContext], Mapping[str, Array]]
DISTORTED = with_overrides(get_objective("gspo_bias"), "gspo_bias", distortion_delta=2.0)
FP8, E4M3 = (
    recipe_of(run_config(BASE, {**formats.engines(), "objective": "grpo"})).engines.infer
    for formats in (NEAREST, NEAREST_E4M3)
)
HELD_OUT = 16  # prompts, each with a group of responses
QUARTERS = ("hardest", "harder", "easier", "easiest")
"""Of the held-out prompts, by the reward of the initial policy."""


def reward(context: DiagnosticContext) -> dict[str, Array]:
    """`reward` of the next rollout."""
    return {"reward": jnp.mean(context.batch.rewards)}


def mismatch(context: DiagnosticContext) -> dict[str, Array]:
    """`rms_log_rho` and `discrepancy` of the next rollout."""
    return {name: METRICS[name](context.batch) for name in ("rms_log_rho", "discrepancy")}


def clipping(context: DiagnosticContext) -> dict[str, Array]:
    """`clip_fraction`, `delta_clip_j` and `asym` with the ratios that the next step ends with.

    Reference: hacking Eq. 13; cancel Eq. 23.
    """
    batch = _after_step(context)
    names = ("clip_fraction", "delta_clip_j", "asym")
    return {name: OBJECTIVE_METRICS[name](context.objective, batch) for name in names}


def last_minibatch(context: DiagnosticContext) -> dict[str, Array]:
    """The weights of the last minibatch of the next step, whose ratios are furthest from one.

    `asym`, `asym_before_clip`: Asym, and what it is if nothing is clipped; `asym_of_ones`: with weights of
    one, zero in groups of equal rewards. `push`, `push_frequent`, `energy_frequent`: sum of the gradient
    norms of the tokens, of the most frequent quarter, and its share, NaN without a push. `weight_std`:
    standard deviation of the ratios within a group. `beyond_clip`: fraction of tokens beyond the clip range,
    whether or not a group transform lets them push.
    For clipped ratios of sequences only.

    Reference: cancel Eq. 23, 24.
    """
    objective, (trajectory, params, before, batch) = context.objective, _last_minibatch(context)
    surrogate: Any = objective.surrogate
    unclipped = replace(objective, surrogate=replace(surrogate, clip=SignAwareClip(1.0, jnp.inf)))
    asym = OBJECTIVE_METRICS["asym"]
    ratios = by_group(masked_mean(surrogate.ratio(batch), batch.mask, axis=1), batch.group_size)
    norms = score_norms(context.recipe, params, trajectory)
    coefficients = token_coefficients(objective, batch)
    push = jnp.sum(jnp.where(batch.mask, jnp.abs(coefficients) * norms, 0))
    shares = energy_by_frequency(
        coefficients, trajectory.responses, batch.mask, context.recipe.model.vocab_size, score_norms=norms
    )
    return {
        "asym": asym(objective, batch),
        "asym_before_clip": asym(unclipped, batch),
        "asym_of_ones": asym(unclipped, before),
        "push": push,
        "push_frequent": jnp.where(push > 0, shares[0] * push, 0),
        "energy_frequent": shares[0],
        "weight_std": jnp.mean(jnp.std(ratios, axis=1)),
        "beyond_clip": OBJECTIVE_METRICS["clip_fraction"](replace(objective, transform=None), batch),
    }


def _last_minibatch(context: DiagnosticContext) -> tuple[Trajectory, Params, TokenBatch, TokenBatch]:
    """Return the last minibatch, the parameters before its update, its batch at theta_old and at these."""
    recipe, prompts = context.recipe, context.recipe.prompts_per_step // context.recipe.minibatches
    rows = prompts * recipe.group_size
    earlier = replace(
        recipe, minibatches=recipe.minibatches - 1, prompts_per_step=recipe.prompts_per_step - prompts
    )
    after, _ = learn(earlier, context.state, jax.tree.map(lambda x: x[:-rows], context.sampled))
    trajectory, before = jax.tree.map(
        lambda x: x[-rows:], (context.trajectory, replace(context.batch, key=None))
    )
    logp = score(recipe, after.params, trajectory).logp
    return trajectory, after.params, before, replace(before, logp=jnp.where(before.mask, logp, 0.0))


def _after_step(context: DiagnosticContext) -> TokenBatch:
    """Return the batch of the next step, with log-probabilities of the policy that the step ends with."""
    recipe = context.recipe
    after, _ = learn(recipe, context.state, context.sampled)
    logp = score(recipe, after.params, context.trajectory).logp
    return replace(context.batch, logp=jnp.where(context.batch.mask, logp, 0.0))


def hacking(context: DiagnosticContext) -> dict[str, Array]:
    """`hacking_j`: J with the weights of delta = 2, whether or not the run is distorted.

    Reference: hacking Eq. 23, Fig. 6.
    """
    return {"hacking_j": OBJECTIVE_METRICS["hacking_j"](DISTORTED, context.batch)}


def discrepancy_under(context: DiagnosticContext, name: str, engine: Engine) -> dict[str, Array]:
    """`discrepancy_fp8`, `discrepancy_e4m3`: the discrepancy if that FP8 engine sampled.

    Reference: acrl Tab. 8.
    """
    engines = replace(context.recipe.engines, infer=engine)
    other = DiagnosticContext(replace(context.recipe, engines=engines), context.state)
    return {f"discrepancy_{name}": METRICS["discrepancy"](other.batch)}


def evaluate_held_out(context: DiagnosticContext) -> dict[str, Array]:
    """`held_out_fp8`, `held_out_bf16`: reward on held-out prompts by inference engine.

    Reference: acrl Tab. 6. Deviation: other prompts of the same task; the policy knows one task.
    """
    return _evaluate_under(context, fp8=FP8, bf16=find_engine("bf16"))


def by_difficulty(context: DiagnosticContext, prompts: int = 64) -> dict[str, Array]:
    """`held_out_fp8_hardest` to `held_out_bf16_easiest`: reward by quarter of the prompts and by engine.

    A prompt is hard if the initial policy has a small reward for it under the training engine. `held_out_fp8`
    and `held_out_bf16` are the means over all prompts.

    Reference: acrl Tab. 3, 12, 13. Deviation: prompts of one task by difficulty in place of benchmarks.
    """
    recipe = context.recipe
    assert context.base is not None

    def rewards(params: Params, engine: Engine | ConstantEngine) -> Array:
        return jnp.mean(rewards_by_prompt(recipe, params, engine, context.key, prompts=prompts), axis=1)

    order = jnp.argsort(rewards(context.base, recipe.engines.train))
    measured = {}
    for name, engine in {"fp8": FP8, "bf16": find_engine("bf16")}.items():
        quarters = jnp.mean(rewards(context.params, engine)[order].reshape(len(QUARTERS), -1), axis=1)
        measured |= {f"held_out_{name}_{quarter}": quarters[i] for i, quarter in enumerate(QUARTERS)}
        measured[f"held_out_{name}"] = jnp.mean(quarters)
    return measured


def both_engines(context: DiagnosticContext, prompts: int = HELD_OUT) -> dict[str, Array]:
    """`held_out_infer`, `held_out_train`: reward on held-out prompts when either engine samples."""
    engines = context.recipe.engines
    return _evaluate_under(context, prompts, infer=engines.infer, train=engines.train)


def validation(context: DiagnosticContext) -> dict[str, Array]:
    """`held_out_infer` and `held_out_train` as above, and `kl_to_base`, in nats per token."""
    return both_engines(context) | {"kl_to_base": DIAGNOSTICS["kl_to_base"](context)["kl_to_base"]}


def _evaluate_under(
    context: DiagnosticContext, prompts: int = HELD_OUT, **engines: Engine
) -> dict[str, Array]:
    recipe, params, key = context.recipe, context.params, context.key
    return {
        f"held_out_{name}": evaluate(recipe, params, engine, key, prompts=prompts)["avg_at_k"]
        for name, engine in engines.items()
    }


def by_either_engine(context: DiagnosticContext) -> dict[str, Array]:
    """The numbers of tokens that are rare (below 0.01) or common (above 0.9), and have pi_train > pi_infer.

    `rare_train`, `common_train`, `rare_infer`, `common_infer`: tokens by the probability of that engine.
    The same with `_higher`: those of them with pi_train > pi_infer, equal ones counted half.

    Reference: acrl Fig. 6.
    """
    batch = context.batch
    higher = (1 + jnp.sign(batch.logp_train - batch.logp_infer)) / 2
    counts = {}
    for side, logp in {"train": batch.logp_train, "infer": batch.logp_infer}.items():
        groups = {"rare": logp < jnp.log(0.01), "common": logp > jnp.log(0.9)}
        for name, members in groups.items():
            inside = batch.mask & members
            counts[f"{name}_{side}"] = jnp.sum(inside, dtype=jnp.float32)
            counts[f"{name}_{side}_higher"] = jnp.sum(jnp.where(inside, higher, 0))
    return counts


def clusters(context: DiagnosticContext) -> dict[str, Array]:
    """`shared_values`: fraction of uncertain tokens that share their pi_infer bitwise; same for pi_train.

    Uncertain: pi_infer below 0.9. Source: hacking Fig. 3b, App. C.1.
    """
    batch = context.batch
    uncertain = batch.mask & (batch.logp_infer < jnp.log(0.9))

    def count_shared(logp: Array) -> Array:
        values = jnp.sort(jnp.where(uncertain, logp, jnp.nan).reshape(-1))  # NaN goes to the end
        equal = values[1:] == values[:-1]
        none = jnp.zeros(1, bool)
        either = jnp.concatenate([equal, none]) | jnp.concatenate([none, equal])
        return jnp.sum(either) / jnp.maximum(jnp.sum(uncertain), 1)

    return {
        "shared_values": count_shared(batch.logp_infer),
        "shared_values_train": count_shared(batch.logp_train),
    }


DIAGNOSTIC_CATALOG: dict[str, Diagnostic] = {
    "reward": reward,
    "mismatch": mismatch,
    "clipping": clipping,
    "last minibatch": last_minibatch,
    "hacking": hacking,
    "under FP8": partial(discrepancy_under, name="fp8", engine=FP8),
    "under E4M3": partial(discrepancy_under, name="e4m3", engine=E4M3),
    "clusters": clusters,
    "curvature": DIAGNOSTICS["curvature"],
    "KL to base": DIAGNOSTICS["kl_to_base"],
    "held out": evaluate_held_out,
    "by difficulty": by_difficulty,
    "held-out prompts": DIAGNOSTICS["held_out"],
    "both engines": both_engines,
    "both engines, 32 prompts": partial(both_engines, prompts=32),
    "validation": validation,
    "by either engine": by_either_engine,
}
READING_OBJECTIVE = frozenset({"clipping", "last minibatch", "curvature"})
"""Diagnostics that read the objective of a run: runs that share a batch must share it, too."""
