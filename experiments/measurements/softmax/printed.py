"""Compare the printed table with ours: find the reading and rounding placement of its numbers."""

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from experiments.measurements.softmax.statistics import prediction_interval

# hacking Tab. 2: averages over its five seeds, four printed digits, and the five KL values.
PAPER = {"mean": 1.0000, "std": 0.0048, "max": 1.0189, "min": 0.9815}
PAPER_KL = (0.046838, 0.019425, 0.015542, 0.014063, 0.025232)
LAST_DIGIT = 1e-4
FALSE_ALARM = 0.05

PAPER_STDS = 5  # seeds whose std is printed, all as 0.0048
COLLAPSED = 0.1

Frame = Any  # the types of pandas are too loose to check

RULE = (
    "all four averages of the paper (five seeds, +-half a printed digit) lie in our prediction intervals "
    "for the average of five seeds, 95% over the four columns together"
)
KL_RULE = (
    "mean and std of the paper's five values lie in our 95% prediction intervals (t and F) for five seeds"
)


def fit(ratios: Frame) -> Frame:
    """Return, per reading, placement and column, the prediction interval and the printed average.

    Source: hacking Tab. 2.
    """
    rows = []
    for (reading, placement), group in ratios.groupby(["per_vector", "placement"], sort=False):
        for column, paper in PAPER.items():
            values = group[column].to_numpy()
            low, high = prediction_interval(
                values, len(PAPER_KL), FALSE_ALARM / len(PAPER), printed=LAST_DIGIT
            )
            rows.append(
                {
                    "per_vector": reading,
                    "placement": placement,
                    "column": column,
                    "paper": paper,
                    "ours": values.mean(),
                    "low": low,
                    "high": high,
                    "seeds": len(values),
                    "inside": low <= paper <= high,
                }
            )
    return pd.DataFrame(rows)


def fitting(fits: Frame, ratios: Frame) -> Frame:
    """Return, by (per_vector, placement), whether the `table` fits, is `steady`, and values `collapse`.

    Steady: five seeds would all print the paper's std with a probability of at least 5%. Collapsed: a
    sample has fewer than a tenth of the distinct values that it has in float32.
    """
    by = ["per_vector", "placement"]
    groups = ratios[ratios["format"] == "bf16"].groupby(by, sort=False)
    levels = groups[["levels", "levels_float32"]].mean()
    return pd.DataFrame(
        {
            "table": fits.groupby(by, sort=False)["inside"].all(),
            "steady": groups["std"].apply(_prints_alike) >= FALSE_ALARM,
            "collapse": levels["levels"] < COLLAPSED * levels["levels_float32"],
        }
    )


def _prints_alike(stds: Frame) -> float:
    """Return the probability that five seeds round to the paper's std, by the t law of one more seed."""
    n = len(stds)
    law = stats.t(n - 1, stds.mean(), max(stds.std(ddof=1), 1e-12) * np.sqrt(1 + 1 / n))
    bounds = PAPER["std"] + LAST_DIGIT * np.array([-0.5, 0.5])
    return float(np.diff(law.cdf(bounds))[0] ** PAPER_STDS)


def fit_kl(divergences: Frame) -> Frame:
    """Return, per candidate definition of the KL column, whether mean and std of the paper fit.

    Source: hacking Tab. 2.
    Deviation: the paper does not define the column. The KL of the distributions themselves is 1e-5, a
      thousandth of what is printed, so the candidates are KLs between histograms of the samples.
    """
    paper = np.array(PAPER_KL)
    rows = []
    for (reading, bins, floor), group in divergences.groupby(["per_vector", "bins", "floor"], sort=False):
        values = group["kl"].to_numpy()
        low, high = prediction_interval(values, len(paper), FALSE_ALARM)
        freedom = (len(paper) - 1, len(values) - 1)
        spread = values.std(ddof=1) * np.sqrt(stats.f.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], *freedom))
        rows.append(
            {
                "per_vector": reading,
                "bins": bins,
                "floor": floor,
                "mean": values.mean(),
                "low": low,
                "high": high,
                "std": values.std(ddof=1),
                "std_low": spread[0],
                "std_high": spread[1],
                "fits": bool(low <= paper.mean() <= high and spread[0] <= paper.std(ddof=1) <= spread[1]),
            }
        )
    return pd.DataFrame(rows)
