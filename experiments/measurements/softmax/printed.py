"""Compare the paper's table with ours, to find the sample size and the placement of its rounding."""

import pandas as pd

from experiments.measurements.softmax.statistics import prediction_interval
from simlab.studies.estimands import Frame

# hacking Tab. 2: averages over its five seeds, four printed digits.
PAPER = {"mean": 1.0000, "std": 0.0048, "max": 1.0189, "min": 0.9815}
PAPER_SEEDS = 5
LAST_DIGIT = 1e-4
FALSE_ALARM = 0.05


def fit(ratios: Frame) -> pd.DataFrame:
    """Return, per reading, placement and column, the prediction interval and the printed average.

    A placement fits if the paper's averages, +- half a printed digit, lie in our prediction intervals for
    five seeds, 95% over the four columns together.

    Reference: hacking Tab. 2.
    """
    rows = []
    for (reading, placement), group in ratios.groupby(["per_vector", "placement"], sort=False):
        for column, paper in PAPER.items():
            values = group[column].to_numpy()
            low, high = prediction_interval(values, PAPER_SEEDS, FALSE_ALARM / len(PAPER), printed=LAST_DIGIT)
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
