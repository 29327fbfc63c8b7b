"""The claims of the papers: findings, statistics of runs, the board, its report, attribution of mismatch."""

from simlab.claims.change_point import ChangePoint, change_point
from simlab.claims.finding import VERDICTS, Finding
from simlab.claims.sequential import stopping_levels
from simlab.claims.statistics import Interval, decide, holm, p_value, paired_effect

__all__ = [
    "VERDICTS",
    "ChangePoint",
    "Finding",
    "Interval",
    "change_point",
    "decide",
    "holm",
    "p_value",
    "paired_effect",
    "stopping_levels",
]
