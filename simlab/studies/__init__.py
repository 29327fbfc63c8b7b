"""Studies: claims, criteria and evidence, statistics of runs, the board, its report, attribution."""

from simlab.studies.change_point import ChangePoint, change_point
from simlab.studies.records import VERDICTS, Claim, Contrast, Criterion, Evidence, Trial
from simlab.studies.sequential import stopping_levels
from simlab.studies.statistics import Interval, decide, holm, p_value, paired_effect

__all__ = [
    "VERDICTS",
    "ChangePoint",
    "Claim",
    "Contrast",
    "Criterion",
    "Evidence",
    "Interval",
    "Trial",
    "change_point",
    "decide",
    "holm",
    "p_value",
    "paired_effect",
    "stopping_levels",
]
