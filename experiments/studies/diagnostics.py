"""Diagnostics of a run between its steps, computed on the next rollout."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from experiments.arms import NEAREST
from experiments.regimes import BASE
from simlab.engines import Engine, find_engine
from simlab.metrics import METRICS, OBJECTIVE_METRICS
from simlab.objectives import TokenBatch, get_objective
from simlab.objectives.objective import with_overrides
from simlab.objectives.ratios import SignAwareClip
from simlab.sweeps import recipe_of, run_config
from simlab.training.diagnostics import DIAGNOSTICS, DiagnosticContext
from simlab.training.evaluation import evaluate
from simlab.training.step import learn, score

Diagnostic = Callable[[DiagnosticContext], Mapping[str, Array]]
DISTORTED = with_overrides(get_objective("gspo_bias"), "gspo_bias", distortion_delta=2.0)
FP8 = recipe_of(run_config(BASE, {**NEAREST.engines(), "objective": "grpo"})).engines.infer
HELD_OUT = 16  # prompts, each with a group of responses


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


def before_clip(context: DiagnosticContext) -> dict[str, Array]:
    """`asym_before_clip` and `beyond_clip`, with the ratios that the next step ends with.

    The first is `asym` if nothing were clipped, the second the fraction of tokens beyond the clip range,
    whether or not a group transform lets them push. For clipped ratios only.

    Reference: cancel Eq. 23.
    """
    batch, objective = _after_step(context), context.objective
    surrogate: Any = objective.surrogate
    unclipped = replace(objective, surrogate=replace(surrogate, clip=SignAwareClip(1.0, jnp.inf)))
    return {
        "asym_before_clip": OBJECTIVE_METRICS["asym"](unclipped, batch),
        "beyond_clip": OBJECTIVE_METRICS["clip_fraction"](replace(objective, transform=None), batch),
    }


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


def under_fp8(context: DiagnosticContext) -> dict[str, Array]:
    """`discrepancy_fp8`: the discrepancy if the FP8 engine of `NEAREST` sampled.

    Reference: acrl Tab. 8.
    """
    engines = replace(context.recipe.engines, infer=FP8)
    other = DiagnosticContext(replace(context.recipe, engines=engines), context.state)
    return {"discrepancy_fp8": METRICS["discrepancy"](other.batch)}


def evaluate_held_out(context: DiagnosticContext) -> dict[str, Array]:
    """`held_out_fp8`, `held_out_bf16`: reward on held-out prompts by inference engine.

    Reference: acrl Tab. 6, 12, 13. Deviation: other prompts of the same task; the policy knows one task.
    """
    return _evaluate_under(context, fp8=FP8, bf16=find_engine("bf16"))


def both_engines(context: DiagnosticContext) -> dict[str, Array]:
    """`held_out_infer`, `held_out_train`: reward on held-out prompts when either engine samples."""
    engines = context.recipe.engines
    return _evaluate_under(context, infer=engines.infer, train=engines.train)


def _evaluate_under(context: DiagnosticContext, **engines: Engine) -> dict[str, Array]:
    recipe, params, key = context.recipe, context.params, context.key
    return {
        f"held_out_{name}": evaluate(recipe, params, engine, key, prompts=HELD_OUT)["avg_at_k"]
        for name, engine in engines.items()
    }


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


def frequent_energy(context: DiagnosticContext) -> dict[str, Array]:
    """`energy_frequent`: share of the gradient norms on the most frequent quarter of the tokens."""
    return {"energy_frequent": DIAGNOSTICS["energy"](context)["energy_by_frequency"][0]}


DIAGNOSTIC_CATALOG: dict[str, Diagnostic] = {
    "reward": reward,
    "mismatch": mismatch,
    "clipping": clipping,
    "before the clip": before_clip,
    "hacking": hacking,
    "under FP8": under_fp8,
    "clusters": clusters,
    "frequent energy": frequent_energy,
    "curvature": DIAGNOSTICS["curvature"],
    "KL to base": DIAGNOSTICS["kl_to_base"],
    "held out": evaluate_held_out,
    "held-out prompts": DIAGNOSTICS["held_out"],
    "both engines": both_engines,
}
READING_OBJECTIVE = frozenset({"clipping", "before the clip", "frequent energy", "curvature"})
"""Diagnostics that read the objective of a run: runs that share a batch must share it, too."""
