"""Studies: claims, criteria and evidence, statistics of runs, the board, its report, attribution."""

from simlab.studies.change_point import ChangePoint, change_point
from simlab.studies.contrasts import Contrast
from simlab.studies.records import Claim, Criterion, Measured, Regime, Trial
from simlab.studies.sequential import stopping_levels
from simlab.studies.statistics import Interval, holm, paired_effect
from simlab.studies.verdicts import VERDICTS, Evidence, criterion_verdict

__all__ = [
    "VERDICTS",
    "ChangePoint",
    "Claim",
    "Contrast",
    "Criterion",
    "Evidence",
    "Interval",
    "Measured",
    "Regime",
    "Trial",
    "change_point",
    "criterion_verdict",
    "holm",
    "paired_effect",
    "stopping_levels",
]
