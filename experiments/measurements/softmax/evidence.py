"""Compute the estimates of the claims and of their notes, with intervals, from the tables."""

from collections.abc import Mapping

import numpy as np

from experiments.measurements.softmax.statistics import mean_interval
from experiments.measurements.softmax.tables import PAPER_PLACEMENT
from experiments.papers.hacking import H1, H2, H3
from simlab.studies.estimands import Frame
from simlab.studies.samples import StoredInterval

Tables = Mapping[str, Frame]


def measure_rows(tables: Tables) -> dict[str, StoredInterval]:
    """Return the measured numbers by id: those of criteria, and those of `write_note`."""
    chosen = _paper_rows(tables)
    inverse = tables["inverse"]
    smallest = float(inverse["normalized_min"].min())
    return {
        **_table(tables),
        "levels": _interval((chosen["levels"] / chosen["levels_float32"]).to_numpy()),
        "heights": _heights(tables),
        "inverse": StoredInterval(
            float(inverse["normalized"].mean()), smallest, float(inverse["normalized"].max())
        ),
        "inverse_reported": _interval(inverse["reported_below_1"].to_numpy()),
        "inverse_sampled": _interval(chosen["inverse"].to_numpy()),
        **_real(tables),
    }


def write_note(claim: str, rows: Mapping[str, StoredInterval]) -> str:
    """Return the estimate for the note of a claim, which decides nothing; empty without one."""
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


def _find_reading(tables: Tables) -> int:
    """Return the reading of the paper that the claims use: the fewest tokens per vector of logits."""
    return int(tables["ratios"]["per_vector"].min())


def _paper_rows(tables: Tables) -> Frame:
    ratios = tables["ratios"]
    return ratios[
        (ratios["placement"] == PAPER_PLACEMENT)
        & (ratios["format"] == "bf16")
        & (ratios["per_vector"] == _find_reading(tables))
    ]


def _table(tables: Tables) -> dict[str, StoredInterval]:
    fits = tables["fit"]
    chosen = fits[(fits["placement"] == PAPER_PLACEMENT) & (fits["per_vector"] == _find_reading(tables))]
    return {
        f"table_{row['column']}": StoredInterval(row["ours"], row["low"], row["high"])
        for row in chosen.to_dict("records")
    }


def _heights(tables: Tables) -> StoredInterval:
    """Return the total variation of two seeds over that of a random split."""
    pairs = tables["level_pairs"]
    rounded = pairs[(pairs["precision"] == "rounded") & (pairs["per_vector"] == _find_reading(tables))]
    return _interval((rounded["variation"] / rounded["noise"]).to_numpy())


def _real(tables: Tables) -> dict[str, StoredInterval]:
    each = tables["discretization"].set_index("source")
    gaussian = each.loc["gaussian", "std"]
    squares = tables["real_positions"]["std"].to_numpy() ** 2
    low, high = np.sqrt(mean_interval(squares)) / gaussian
    fraction = each["sampled_levels"] / each["sampled_levels_float32"]
    return {
        "real_spread": StoredInterval(float(each.loc["smollm2", "std"] / gaussian), float(low), float(high)),
        "real_levels": StoredInterval(
            float(fraction["smollm2"]), float(fraction.min()), float(fraction.max())
        ),
    }
