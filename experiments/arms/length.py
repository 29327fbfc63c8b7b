"""Treatments of *lr* on recurrences: schedules that the length of the responses triggers."""

from dataclasses import replace

from experiments.arms.changes import schedule
from experiments.regimes import CONTROL
from simlab.studies.arms import Arm

SURGE = 2.0
"""A surge begins where responses are this many times as long as in the first steps."""
PRINTED_PERIOD, LATE_PERIOD = 1.8, 250 / 110
"""Periods over the step of the surge: that of the paper, and the one under which its 4B model collapses."""
SCHEDULE = schedule("length-triggered", rise=SURGE, delay=PRINTED_PERIOD)

FREE = Arm("no schedule")
BF16 = Arm("BF16", {"engines": CONTROL})
TRIGGERED = Arm("triggered", SCHEDULE)
TRIGGERED_LATE = Arm("triggered late", schedule("length-triggered", rise=SURGE, delay=LATE_PERIOD))


def with_triggered_halving(arm: Arm) -> Arm:
    """Return the arm with the schedule of the paper."""
    label = arm.label and f"{arm.label}, triggered"
    return replace(arm, id=f"{arm.id}, triggered", label=label, changes={**arm.changes, **SCHEDULE})
