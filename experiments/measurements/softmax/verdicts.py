"""Verdicts: each with the claim in our words, a number with its interval, and the rule that decides."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.measurements.softmax import printed
from experiments.measurements.softmax.statistics import mean_interval
from experiments.papers.hacking import H1, H2, H3, H18

Frame = Any  # the types of pandas are too loose to check
Found = Mapping[str, Frame]
PAPER_PLACEMENT = "logits-probs"
SAME_HEIGHTS = 0.05
FEW_LEVELS = printed.COLLAPSED
SAME_SPREAD = (0.8, 1.25)
THEORY_MARGIN = 0.05
THEORY_BITS = (4, 12)


def judge(found: Found) -> list[dict]:
    """Return the rows of the table `verdicts` from the other tables."""
    return [
        *_table(found),
        _placement(found),
        _divergence(found),
        *_levels(found),
        *_inverse(found),
        _training(found),
        _theory(found),
        *_real(found),
    ]


def _row(id: str, claim: str, statement: str, measured: float, interval, rule: str, verdict: str) -> dict:
    low, high = interval
    return {
        "id": id,
        "claim": claim,
        "statement": statement,
        "measured": float(measured),
        "low": float(low),
        "high": float(high),
        "rule": rule,
        "verdict": verdict,
    }


def _reading(found: Found) -> int:
    """The reading that the verdicts quote: the fewest tokens per vector of logits."""
    return int(found["ratios"]["per_vector"].min())


def _paper_rows(found: Found) -> Frame:
    ratios = found["ratios"]
    return ratios[
        (ratios["placement"] == PAPER_PLACEMENT)
        & (ratios["format"] == "bf16")
        & (ratios["per_vector"] == _reading(found))
    ]


def _table(found: Found) -> list[dict]:
    fits = found["fit"]
    chosen = fits[(fits["placement"] == PAPER_PLACEMENT) & (fits["per_vector"] == _reading(found))]
    return [
        _row(
            f"table_{row['column']}",
            H1.id,
            f"{row['column']} of the FP32/BF16 ratio, tokens from Gaussian logits: {row['paper']:.4f}",
            row["ours"],
            (row["low"], row["high"]),
            f"this column of: {printed.RULE}",
            "reproduced" if row["inside"] else "opposite",
        )
        for row in chosen.to_dict("records")
    ]


def _placement(found: Found) -> dict:
    fitting = printed.fitting(found["fit"], found["ratios"])
    table = _names(fitting[fitting["table"] & fitting["steady"]])
    fitting = fitting[fitting.all(axis=1)]
    both = _names(fitting)
    readings = sorted(set(fitting.index.get_level_values("per_vector")))
    return _row(
        "placements",
        H1.id,
        f"rounding placements that give the printed table: {', '.join(table) or 'none'}; of these, with "
        f"probabilities on few levels: {', '.join(both) or 'none'} (tokens per vector of logits: "
        f"{', '.join(map(str, readings)) or 'none'})",
        len(both),
        (len(both), len(table)),
        f"reproduced if `{PAPER_PLACEMENT}` alone fits under some reading. To fit: {printed.RULE}; five "
        "seeds print the same std with probability 5% or more; distinct values are less than "
        f"{printed.COLLAPSED} of those in float32",
        "reproduced" if both == [PAPER_PLACEMENT] else "inconclusive",
    )


def _names(fitting: Frame) -> list[str]:
    return sorted(set(fitting.index.get_level_values("placement")))


def _divergence(found: Found) -> dict:
    kl = found["kl_fit"]
    fits = kl[kl["fits"]]
    listed = ", ".join(f"{r.per_vector}/{r.bins}/{r.floor:g}" for r in fits.itertuples())
    return _row(
        "kl",
        H1.id,
        "the KL column, 0.024 on average, is a KL between histograms of the samples; definitions that fit "
        f"(tokens per vector/bins/floor): {listed or 'none'}",
        len(fits),
        (0, len(kl)),
        f"reproduced if exactly one candidate definition fits; {printed.KL_RULE}",
        "reproduced" if len(fits) == 1 else "inconclusive",
    )


def _levels(found: Found) -> list[dict]:
    ratios, pairs = _paper_rows(found), found["level_pairs"]
    share = (ratios["levels"] / ratios["levels_float32"]).to_numpy()
    rounded = pairs[(pairs["precision"] == "rounded") & (pairs["per_vector"] == _reading(found))]
    control = pairs[(pairs["precision"] == "float32") & (pairs["per_vector"] == _reading(found))]
    heights = (rounded["variation"] / rounded["noise"]).to_numpy()
    interval = mean_interval(heights)
    fixed = rounded["shared_mass"].mean() > 0.99 and control["shared_mass"].mean() < 0.5
    inside = max(abs(bound - 1) for bound in interval) <= SAME_HEIGHTS
    return [
        _row(
            "levels",
            H2.id,
            "BF16 probabilities fall on few levels: distinct values as a share of those in float32",
            share.mean(),
            mean_interval(share),
            f"reproduced if the interval is below {FEW_LEVELS}",
            "reproduced" if mean_interval(share)[1] < FEW_LEVELS else "no effect",
        ),
        _row(
            "heights",
            H2.id,
            "places and heights of the levels do not move with the seed: total variation of two seeds over "
            f"that of a random split (shared values: BF16 {rounded['shared_mass'].mean():.4f} of the tokens, "
            f"float32 {control['shared_mass'].mean():.4f})",
            heights.mean(),
            interval,
            f"reproduced if the interval over pairs of seeds is within 1 +- {SAME_HEIGHTS}, over 99% of "
            "tokens lie on levels of the other seed, and under 50% in the float32 control",
            "reproduced" if fixed and inside else "inconclusive",
        ),
    ]


def _inverse(found: Found) -> list[dict]:
    inverse, sampled = found["inverse"], _paper_rows(found)["inverse"].to_numpy()
    rule = "exact expectation over the vocabulary for 250 vectors per seed, float64: "
    return [
        _row(
            "inverse",
            H3.id,
            "E[1/rho] under pi_infer is at least 1 when pi_infer is normalized",
            inverse["normalized"].mean(),
            (inverse["normalized_min"].min(), inverse["normalized"].max()),
            rule + "reproduced if the smallest is above 1 (the interval starts at it)",
            "reproduced" if inverse["normalized_min"].min() > 1 else "opposite",
        ),
        _row(
            "inverse_reported",
            H3.id,
            "the same with rounded probabilities as the engine reports them, which do not sum to 1: share of "
            "vectors where E[1/rho] is below 1 (the bound is then the sum of the probabilities)",
            inverse["reported_below_1"].mean(),
            mean_interval(inverse["reported_below_1"].to_numpy()),
            rule + "reproduced if no vector is below 1, opposite if some are",
            "opposite" if inverse["reported_below_1"].max() > 0 else "reproduced",
        ),
        _row(
            "inverse_sampled",
            H3.id,
            "the average of 1/rho over sampled tokens is above 1",
            sampled.mean(),
            mean_interval(sampled),
            "reproduced if the 95% interval over seeds lies above 1",
            "reproduced" if mean_interval(sampled)[0] > 1 else "inconclusive",
        ),
    ]


def _training(found: Found) -> dict:
    share = (_paper_rows(found)["levels"] / _paper_rows(found)["levels_float32"]).to_numpy()
    return _row(
        "static_levels",
        H18.id,
        "static part: clustering of pi_infer needs no training, random logits show it",
        share.mean(),
        mean_interval(share),
        f"reproduced if distinct values of untrained logits are below {FEW_LEVELS} of those in float32",
        "reproduced" if mean_interval(share)[1] < FEW_LEVELS else "no effect",
    )


def _theory(found: Found) -> dict:
    spread = found["spread"]
    ratio = (spread["std"] / spread["theory"])[spread["mantissa_bits"].between(*THEORY_BITS)].to_numpy()
    return _row(
        "spread",
        H1.id,
        "the spread of the ratio is 2^-m times the constant of first-order theory: measured over predicted",
        np.median(ratio),
        (ratio.min(), ratio.max()),
        f"reproduced if all of m = {THEORY_BITS[0]}..{THEORY_BITS[1]}, placements and roundings lie within "
        f"1 +- {THEORY_MARGIN}",
        "reproduced" if np.abs(ratio - 1).max() <= THEORY_MARGIN else "inconclusive",
    )


def _real(found: Found) -> list[dict]:
    each = found["discretization"].set_index("source")
    squares = found["real_positions"]["std"].to_numpy() ** 2
    interval = np.sqrt(mean_interval(squares)) / each.loc["gaussian", "std"]
    ratio = each.loc["smollm2", "std"] / each.loc["gaussian", "std"]
    inside = SAME_SPREAD[0] <= interval[0] and interval[1] <= SAME_SPREAD[1]
    outside = interval[0] > SAME_SPREAD[1] or interval[1] < SAME_SPREAD[0]
    share = each["sampled_levels"] / each["sampled_levels_float32"]
    return [
        _row(
            "real_spread",
            H1.id,
            "BF16 spreads a real model's ratio as it does Gaussian logits': std, SmolLM2 over Gaussian",
            ratio,
            interval,
            f"reproduced inside {SAME_SPREAD}, opposite outside, by the interval over positions",
            "reproduced" if inside else "opposite" if outside else "inconclusive",
        ),
        _row(
            "real_levels",
            H2.id,
            "a real model's BF16 probabilities fall on few levels too: distinct sampled values over float32 "
            f"(as many Gaussian vectors: {share['gaussian']:.4f})",
            share["smollm2"],
            (share.min(), share.max()),
            "reproduced if below 0.5 (tokens share vectors, so the control repeats itself as well)",
            "reproduced" if share["smollm2"] < 0.5 else "no effect",
        ),
    ]
