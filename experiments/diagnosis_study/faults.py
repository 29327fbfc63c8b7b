"""The faults by cause: each changes a draft where the real fault acts, or the finished log of the loader."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.diagnosis_study import faults_forward as forward
from experiments.diagnosis_study import faults_logged as logged
from experiments.diagnosis_study.faults_forward import Change
from experiments.diagnosis_study.forward_passes import INFER_ENGINES, TRAIN_ENGINES, Pool
from experiments.diagnosis_study.log_assembly import (
    draw_tokens,
    finish_log,
    pick_scores,
    start_draft,
)
from simlab.diagnosis.log import TokenLog


@dataclass(frozen=True)
class Fault:
    """A variant of a cause.

    `forward` changes logits before sampling, `score` changes what is logged after it. `held_out` variants
    are for the test only.
    """

    cause: str
    forward: Change | None = None
    score: Change | None = None
    held_out: bool = False
    needs_experts: bool = False


def _name_faults(
    cause: str, change: Callable[..., None], *names: str, held_out: bool = False
) -> dict[str, Fault]:
    """Return variants that add the forward pass of their name to the logits."""
    needs_experts = change is forward.experts
    return {name: Fault(cause, partial(change, name=name), None, held_out, needs_experts) for name in names}


FAULTS: dict[str, Fault] = {
    "no fault": Fault("rounding"),
    "old weights": Fault("weight_sync", partial(forward.layer, name="old 4")),
    "frozen": Fault("weight_sync", forward.frozen),
    **_name_faults("weight_sync", forward.layer, "layer old", "layer corrupt", "norms old", "layers swapped"),
    **_name_faults("weight_sync", forward.layer, "embedding rows"),
    **_name_faults("weight_sync", forward.layer, "attention corrupt", "fresh layer", held_out=True),
    "head rows": Fault("weight_sync", forward.head_rows),
    **_name_faults("weight_sync", forward.experts, "experts permuted", "all experts permuted"),
    **_name_faults("weight_sync", forward.experts, "experts scrambled", "all experts scrambled"),
    **_name_faults("weight_sync", forward.experts, "expert shard old"),
    **_name_faults("weight_sync", forward.experts, "gate and up swapped", held_out=True),
    **_name_faults("weight_sync", forward.experts, "experts noisy"),
    "every k-th row": Fault("one_worker", partial(forward.one_worker, layout="stride")),
    "block of rows": Fault("one_worker", partial(forward.one_worker, layout="block")),
    "groups of rows": Fault("one_worker", partial(forward.one_worker, layout="groups")),
    "coarse worker": Fault("one_worker", forward.coarse_worker),
    "worker's head": Fault("one_worker", forward.worker_head),
    "two bad workers": Fault("one_worker", forward.two_bad_workers, held_out=True),
    "ages": Fault("staleness", partial(forward.age_sequences, with_version=True)),
    "ages not logged": Fault("staleness", partial(forward.age_sequences, with_version=False)),
    "partial rollout": Fault("staleness", partial(forward.age_sequences, with_version=True, within=True)),
    "two ages": Fault("staleness", forward.mix_ages),
    "long are old": Fault("staleness", forward.age_long_responses, held_out=True),
    "temperature": Fault("temperature", logged.temperature),
    "temperature in training": Fault("temperature", logged.temperature_in_training),
    "temperature reported": Fault("temperature", score=logged.reported_temperature),
    "top-p": Fault("support", logged.top_p),
    "top-k": Fault("support", logged.top_k),
    "min-p": Fault("support", logged.min_p),
    "top-p and top-k": Fault("support", logged.top_p_and_top_k),
    "epsilon cutoff": Fault("support", logged.epsilon_cutoff, held_out=True),
    "base 2": Fault("log_base", score=logged.edit_logp("infer", lambda logp: logp * (1 / np.log(2)))),
    "base 10": Fault("log_base", score=logged.edit_logp("infer", lambda logp: logp * (1 / np.log(10)))),
    "base 2 in training": Fault("log_base", score=logged.edit_logp("train", lambda logp: logp / np.log(2))),
    "base 10 in training": Fault("log_base", score=logged.edit_logp("train", lambda logp: logp / np.log(10))),
    "shift": Fault("token_shift", score=logged.token_shift),
    "roll": Fault("token_shift", score=logged.roll),
    "shift by three": Fault("token_shift", score=logged.shift_by_three, held_out=True),
    "jump": Fault("position", forward.jump),
    "rope": Fault("position", forward.stretch_rotations),
    "cache blocks": Fault("position", forward.blocks),
    "alternate chunks": Fault("position", forward.shift_alternate_chunks),
    "dynamic rope": Fault("position", forward.dynamic_rope, held_out=True),
    **_name_faults("start_of_response", forward.prompt, "prompt start", "prompt end", "no first token"),
    **_name_faults("start_of_response", forward.prompt, "other prompt", held_out=True),
    "end logit": Fault("end_of_sequence", partial(logged.end_logit, engine="infer")),
    "end logit in training": Fault("end_of_sequence", partial(logged.end_logit, engine="train")),
    "end value": Fault("end_of_sequence", score=logged.end_value),
    "stop string": Fault("end_of_sequence", score=logged.stop_string),
    "two end tokens": Fault("end_of_sequence", score=logged.two_end_tokens, held_out=True),
    "other ids": Fault("retokenization", score=logged.other_ids),
    "slip": Fault("retokenization", score=logged.slip),
    "other words": Fault("retokenization", score=logged.other_words),
    "slip and return": Fault("retokenization", score=partial(logged.slip, returns=True), held_out=True),
    **_name_faults("dropout", forward.dropout, "dropout 0.1", "dropout 0.05"),
    **_name_faults("dropout", forward.dropout, "dropout in the last layer", held_out=True),
    "micro batch": Fault("micro_batch", score=logged.micro_batch),
    **_name_faults("dropout", forward.dropout, "dropout in attention", held_out=True),
    "router": Fault("routing", forward.routing, needs_experts=True),
    "identical": Fault("identical_samples", score=partial(logged.repeat_in_groups, group=8)),
    "pairs": Fault("identical_samples", score=partial(logged.repeat_in_groups, group=2)),
    "two seeds": Fault(
        "identical_samples", score=partial(logged.repeat_in_groups, group=8, distinct=2), held_out=True
    ),
    "frozen old": Fault("frozen_old", score=partial(logged.frozen_old, by_version=False)),
    "frozen old by version": Fault("frozen_old", score=partial(logged.frozen_old, by_version=True)),
    "double ratio": Fault("double_ratio", score=logged.double_ratio),
    "wrong page": Fault("confident_disagreement", forward.wrong_page),
    "garbage": Fault("confident_disagreement", forward.garbage),
    "aligned pages": Fault("confident_disagreement", forward.aligned_pages, held_out=True),
    "offset": Fault("unknown", score=logged.offset),
    "permuted": Fault("unknown", score=logged.permute),
    "rounded": Fault("unknown", score=logged.edit_logp("infer", lambda logp: np.round(logp, 1))),
    "entropy": Fault("unknown", score=logged.entropy),
    "sequence mean": Fault("unknown", score=logged.sequence_mean),
    "squared": Fault("unknown", score=logged.edit_logp("infer", lambda logp: -np.square(logp))),
    "reversed": Fault("unknown", score=logged.reverse),
    "argmax": Fault("unknown", score=logged.argmax),
    "clipped": Fault("unknown", score=logged.clip),
    "running sum": Fault("unknown", score=logged.running_sum),
    "one minus p": Fault("unknown", score=logged.edit_logp("infer", logged.one_minus), held_out=True),
    "moving average": Fault("unknown", score=logged.edit_logp("infer", logged.moving_average), held_out=True),
    "eight levels": Fault("unknown", score=logged.edit_logp("infer", logged.eight_levels), held_out=True),
}
"""Every variant by name."""

UNSEEN_IN_RHO = ("micro_batch", "identical_samples", "frozen_old", "double_ratio")
"""Causes that leave the mismatch as it is; their logs count as realistic at every size."""


def simulate_log(
    name: str, pool: Pool, rng: np.random.Generator, size: float, held_out: tuple[str, ...] = ()
) -> tuple[TokenLog, dict[str, float | str]]:
    """Return a log with the fault `name`, and its description.

    Args:
        name: Key of `FAULTS`.
        pool: Contexts and logits of a policy.
        rng: Random numbers.
        size: Size of the fault, 0 to 1 on the scale of the variant.
        held_out: Inference engines to choose from instead of those of the fit.

    Returns:
        The log, and a row with `excess`: RMS log rho with the fault over that without.
    """
    fault = FAULTS[name]
    engines = str(rng.choice(TRAIN_ENGINES)), str(rng.choice(held_out or INFER_ENGINES))
    draft = start_draft(pool, rng, size, engines)
    clean_train, clean_infer = draft.train, draft.infer
    if fault.forward:
        fault.forward(draft)
    draw_tokens(draft)
    clean = pick_scores(clean_train, draft.token) - pick_scores(clean_infer, draft.token)
    if pool.direct:
        noise = pool.direct * rng.normal(size=len(clean))
        draft.logp_train, clean = draft.logp_train + noise, clean + noise
    if fault.score:
        fault.score(draft)
    log = finish_log(draft)
    apart = np.clip(log.logp_train.astype(np.float64) - log.logp_infer, -20, 20)
    excess = float(np.sqrt(np.mean(apart**2) / max(np.mean(clean**2), 1e-12)))
    row = {"fault": name, "cause": fault.cause, "size": size}
    origin = {"engines": "/".join(engines), "policy": pool.name}
    shape = {"tokens": len(apart), "sequences": log.num_sequences, "vocabulary": draft.width * draft.buckets}
    return log, row | origin | shape | {"excess": excess}
