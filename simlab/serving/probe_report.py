"""Build the rows of a mismatch report from a measured engine pair."""

from collections.abc import Mapping
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from simlab.core.json_value import Json
from simlab.metrics import METRICS, PROBABILITY_EDGES
from simlab.objectives import TokenBatch
from simlab.rollout.trajectory import Trajectory
from simlab.serving.protocol import EngineScores, Samples
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
    "abs_seq_log_ratio",
)
BINNED = ("tokens_by_pi_train", "mean_rho_by_pi_train", "rms_log_rho_by_pi_train")
BLOCKS = 8
Rows = dict[str, list[dict[str, Json]]]


def build_mismatch_rows(
    pair: Mapping[str, str], prompts: Int[np.ndarray, "N P"], samples: Samples, scores: EngineScores
) -> Rows:
    """Return the rows of the tables `pairs`, `bins`, `positions`, `flips` and `tokens` for one pair.

    `pair` holds `sampling_engine` (pi_infer) and `scoring_engine` (pi_train); every row repeats it. Positions
    are eighths of the longest response. Flips are fractions of tokens per layer, without rows if an engine
    does not report its experts.
    """
    batch = TokenBatch(
        logp=jnp.asarray(scores.logps),
        logp_train=jnp.asarray(scores.logps),
        logp_infer=jnp.asarray(samples.logps),
        rewards=jnp.zeros(len(prompts)),
        mask=jnp.asarray(samples.mask),
        group_size=1,
    )
    values = {name: np.asarray(value) for name, value in _measure(batch).items()}
    flips = _compute_flips(prompts, samples, scores)
    scalars = {name: float(values[name]) for name in SCALARS}
    mean_flips = None if flips is None else float(flips.mean())
    tokens = int(samples.mask.sum())
    rows: Rows = {"pairs": [{**pair, "tokens": tokens, **scalars, "router_flips": mean_flips}]}
    columns = {name.removesuffix("_by_pi_train"): values[name].tolist() for name in BINNED}
    edges = pairwise(PROBABILITY_EDGES)
    rows["bins"] = [
        {**pair, "low": low, "high": high, **{name: column[k] for name, column in columns.items()}}
        for k, (low, high) in enumerate(edges)
    ]
    rows["positions"] = [{**pair, **row} for row in _build_position_rows(samples, scores)]
    rows["flips"] = [
        {**pair, "layer": layer, "flips": float(value)}
        for layer, value in enumerate(() if flips is None else flips)
    ]
    sequence, position = np.nonzero(samples.mask)
    rows["tokens"] = [
        # NumPy scalars stay float32 in the table, half as large.
        {**pair, "sequence": int(s), "position": int(t), "logp_train": a, "logp_infer": b}
        for s, t, a, b in zip(
            sequence, position, scores.logps[samples.mask], samples.logps[samples.mask], strict=True
        )
    ]
    return rows


@jax.jit
def _measure(batch: TokenBatch) -> dict[str, jax.Array]:
    return {name: METRICS[name](batch) for name in (*SCALARS, *BINNED)}


def _build_position_rows(samples: Samples, scores: EngineScores) -> list[dict[str, Json]]:
    length = samples.mask.shape[1]
    rows = []
    for block in np.array_split(np.arange(length), min(BLOCKS, length)):
        mask = samples.mask[:, block]
        log_rho = (scores.logps - samples.logps)[:, block][mask]
        if log_rho.size:
            ends = {"first": int(block[0]), "last": int(block[-1])}
            rms = float(np.sqrt(np.mean(np.square(log_rho, dtype=np.float64))))
            rows.append({**ends, "tokens": log_rho.size, "rms_log_rho": rms})
    return rows


def _compute_flips(
    prompts: Int[np.ndarray, "N P"], samples: Samples, scores: EngineScores
) -> np.ndarray | None:
    if samples.routed_experts is None or scores.routed_experts is None:
        return None
    trajectory = Trajectory(
        prompts=jnp.asarray(prompts),
        responses=jnp.asarray(samples.responses),
        mask=jnp.asarray(samples.mask),
        logp_infer=jnp.asarray(samples.logps),
        rewards=jnp.zeros(len(prompts)),
        routed_experts=jnp.asarray(samples.routed_experts),
    )
    return np.asarray(router_flips(jnp.asarray(scores.routed_experts), trajectory))


def build_divergence_rows(
    pair: Mapping[str, str],
    scoring: Float[np.ndarray, "depths B S D"],
    sampling: Float[np.ndarray, "depths B S D"],
    depths: list[int],
) -> list:
    """Return rows of the table `layers`: RMS difference of normed hidden states over their RMS, by depth.

    `scoring` and `sampling` are the hidden states [depths, B, S, D] of the two engines.
    """
    return [
        {**pair, "depth": depth, "difference": float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))}
        for depth, a, b in zip(depths, scoring.astype(np.float64), sampling.astype(np.float64), strict=True)
    ]
