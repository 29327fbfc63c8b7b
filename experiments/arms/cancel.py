"""Treatments of *cancel*: objectives under which tokens that answers share cancel, or do not."""

from dataclasses import replace

from experiments.arms.changes import objective
from simlab.studies.arms import Arm

GRPO = Arm("GRPO", objective("grpo"))
FIX = Arm("GRPO-fix", objective("grpo_fix"))
GSPO = Arm("GSPO", objective("gspo"))
WIDE = Arm("GSPO, wide clip", objective("gspo", clip_low=0.2, clip_high=0.2))
UNCHANGED = Arm("DFPO without transform", objective("dfpo_none"))
MIN = Arm("DFPO min", objective("dfpo_min"))
ORTH = Arm("DFPO orth", objective("dfpo_orth"))
NO_STOP = Arm("DFPO min, no stop", objective("dfpo_min_no_stop"))
SCALED = Arm("DFPO, half weights", objective("dfpo_scale"))


def in_groups_of(size: int, arm: Arm) -> Arm:
    """Return the arm with another size of the groups."""
    return replace(arm, id=f"{arm.id}, G = {size}", changes={**arm.changes, "group_size": size})
