"""What a measured engine pair becomes: rows of the lab's mismatch report."""

from collections.abc import Mapping
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.manifest import Json
from simlab.metrics import METRICS, PROBABILITY_EDGES
from simlab.objectives import TokenBatch
from simlab.rollout.trajectory import Trajectory
from simlab.serving.protocol import Sampled, Scored
from simlab.training.measure import router_flips

SCALARS = (
    "std_rho",
    "mean_rho",
    "max_rho",
    "min_rho",
    "rms_log_rho",
    "discrepancy",
    "pcc",
    "k3_kl",
    "ess_token",
    "ess_sequence",
    "log_ppl_abs_diff",
)
BINNED = ("tokens_by_pi_train", "mean_rho_by_pi_train", "rms_log_rho_by_pi_train")
BLOCKS = 8
Rows = dict[str, list[dict[str, Json]]]


def mismatch_rows(pair: Mapping[str, str], prompts: np.ndarray, sampled: Sampled, scored: Scored) -> Rows:
    """Return the rows of the tables `pairs`, `bins`, `positions`, `flips` and `tokens` for one pair.

    `pair` names its sides, `sampler` (pi_infer) and `scorer` (pi_train); every row repeats it. Positions are
    eighths of the longest response; flips are fractions of tokens per layer, without rows if an engine does
    not tell its experts.
    """
    batch = TokenBatch(
        logp=jnp.asarray(scored.logps),
        logp_train=jnp.asarray(scored.logps),
        logp_infer=jnp.asarray(sampled.logps),
        rewards=jnp.zeros(len(prompts)),
        mask=jnp.asarray(sampled.mask),
        group_size=1,
    )
    found = {name: np.asarray(value) for name, value in _measured(batch).items()}
    flips = _flips(prompts, sampled, scored)
    scalars = {name: float(found[name]) for name in SCALARS}
    mean_flips = None if flips is None else float(flips.mean())
    tokens = int(sampled.mask.sum())
    rows: Rows = {"pairs": [{**pair, "tokens": tokens, **scalars, "router_flips": mean_flips}]}
    columns = {name.removesuffix("_by_pi_train"): found[name].tolist() for name in BINNED}
    edges = pairwise(PROBABILITY_EDGES)
    rows["bins"] = [
        {**pair, "low": low, "high": high, **{name: values[k] for name, values in columns.items()}}
        for k, (low, high) in enumerate(edges)
    ]
    rows["positions"] = [{**pair, **row} for row in _by_position(sampled, scored)]
    rows["flips"] = [
        {**pair, "layer": layer, "flips": float(value)}
        for layer, value in enumerate(() if flips is None else flips)
    ]
    sequence, position = np.nonzero(sampled.mask)
    rows["tokens"] = [
        # Scalars of numpy: the table keeps them as float32, half as large.
        {**pair, "sequence": int(s), "position": int(t), "logp_train": a, "logp_infer": b}
        for s, t, a, b in zip(
            sequence, position, scored.logps[sampled.mask], sampled.logps[sampled.mask], strict=True
        )
    ]
    return rows


@jax.jit
def _measured(batch: TokenBatch) -> dict[str, jax.Array]:
    return {name: METRICS[name](batch) for name in (*SCALARS, *BINNED)}


def _by_position(sampled: Sampled, scored: Scored) -> list[dict[str, Json]]:
    length = sampled.mask.shape[1]
    rows = []
    for block in np.array_split(np.arange(length), min(BLOCKS, length)):
        mask = sampled.mask[:, block]
        log_rho = (scored.logps - sampled.logps)[:, block][mask]
        if log_rho.size:
            rms = float(np.sqrt(np.mean(np.square(log_rho, dtype=np.float64))))
            rows.append(
                {"first": int(block[0]), "last": int(block[-1]), "tokens": log_rho.size, "rms_log_rho": rms}
            )
    return rows


def _flips(prompts: np.ndarray, sampled: Sampled, scored: Scored) -> np.ndarray | None:
    if sampled.experts is None or scored.experts is None:
        return None
    trajectory = Trajectory(
        prompts=jnp.asarray(prompts),
        responses=jnp.asarray(sampled.responses),
        mask=jnp.asarray(sampled.mask),
        logp_infer=jnp.asarray(sampled.logps),
        rewards=jnp.zeros(len(prompts)),
        routed_experts=jnp.asarray(sampled.experts),
    )
    return np.asarray(router_flips(jnp.asarray(scored.experts), trajectory))


def divergence_rows(pair: Mapping[str, str], ours: np.ndarray, theirs: np.ndarray, depths: list[int]) -> list:
    """Return rows of the table `layers`: RMS difference of normed hidden states over their RMS, by depth.

    `ours` and `theirs` are [depths, B, S, D] of the scoring and the sampling engine.
    """
    rows = []
    for depth, a, b in zip(depths, ours.astype(np.float64), theirs.astype(np.float64), strict=True):
        apart = float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))
        rows.append({**pair, "depth": depth, "difference": apart})
    return rows
