"""Numbers of the claims and of their notes, each with its interval, from the tables of the experiment."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.measurements.softmax.statistics import mean_interval
from experiments.measurements.softmax.tables import PAPER_PLACEMENT
from experiments.papers.hacking import H1, H2, H3
from simlab.studies.samples import StoredInterval

Frame = Any  # the types of pandas are too loose to check
Found = Mapping[str, Frame]


def measure_rows(found: Found) -> dict[str, StoredInterval]:
    """Return the measured numbers by id: those of criteria, and those of `write_note`."""
    chosen = _paper_rows(found)
    few = _interval((chosen["levels"] / chosen["levels_float32"]).to_numpy())
    inverse = found["inverse"]
    smallest = float(inverse["normalized_min"].min())
    return {
        **_table(found),
        "levels": few,
        "static_levels": few,
        "heights": _heights(found),
        "inverse": StoredInterval(
            float(inverse["normalized"].mean()), smallest, float(inverse["normalized"].max())
        ),
        "inverse_reported": _interval(inverse["reported_below_1"].to_numpy()),
        "inverse_sampled": _interval(chosen["inverse"].to_numpy()),
        **_real(found),
    }


def write_note(claim: str, rows: Mapping[str, StoredInterval]) -> str:
    """Return what decides nothing and stands in the note of a claim; empty if there is nothing."""
    if claim not in NOTES:
        return ""
    id, statement = NOTES[claim]
    return f"Also: {statement} ({rows[id].estimate:.4g})"


NOTES = {
    H1.id: (
        "real_spread",
        "BF16 spreads a real model's ratio as it does Gaussian logits': std, SmolLM2 over Gaussian",
    ),
    H2.id: (
        "real_levels",
        "a real model's BF16 probabilities fall on few levels too: distinct sampled values over float32",
    ),
    H3.id: (
        "inverse_reported",
        "with rounded probabilities as the engine reports them, which do not sum to 1: fraction of vectors "
        "where E[1/rho] is below 1 (the bound is then the sum of the probabilities)",
    ),
}
"""Id of a claim -> id of a row and what it measures."""


def _interval(values: np.ndarray) -> StoredInterval:
    return StoredInterval(float(values.mean()), *mean_interval(values))


def _reading(found: Found) -> int:
    """Return the reading of the paper that the claims use: the fewest tokens per vector of logits."""
    return int(found["ratios"]["per_vector"].min())


def _paper_rows(found: Found) -> Frame:
    ratios = found["ratios"]
    return ratios[
        (ratios["placement"] == PAPER_PLACEMENT)
        & (ratios["format"] == "bf16")
        & (ratios["per_vector"] == _reading(found))
    ]


def _table(found: Found) -> dict[str, StoredInterval]:
    fits = found["fit"]
    chosen = fits[(fits["placement"] == PAPER_PLACEMENT) & (fits["per_vector"] == _reading(found))]
    return {
        f"table_{row['column']}": StoredInterval(row["ours"], row["low"], row["high"])
        for row in chosen.to_dict("records")
    }


def _heights(found: Found) -> StoredInterval:
    """Return the total variation of two seeds over that of a random split."""
    pairs = found["level_pairs"]
    rounded = pairs[(pairs["precision"] == "rounded") & (pairs["per_vector"] == _reading(found))]
    return _interval((rounded["variation"] / rounded["noise"]).to_numpy())


def _real(found: Found) -> dict[str, StoredInterval]:
    each = found["discretization"].set_index("source")
    gaussian = each.loc["gaussian", "std"]
    squares = found["real_positions"]["std"].to_numpy() ** 2
    low, high = np.sqrt(mean_interval(squares)) / gaussian
    share = each["sampled_levels"] / each["sampled_levels_float32"]
    return {
        "real_spread": StoredInterval(float(each.loc["smollm2", "std"] / gaussian), float(low), float(high)),
        "real_levels": StoredInterval(float(share["smollm2"]), float(share.min()), float(share.max())),
    }
