"""Arms of *cancel*: on-policy in both engines, on tasks with many or with two correct answers."""

from collections.abc import Mapping

from experiments.arms.changes import EQUAL, objective
from experiments.policies import SPELLING_POLICIES, TEMPLATE_POLICIES
from simlab.core.json_value import Json
from simlab.studies.design import Arm

CANCEL = {
    "GRPO": objective("grpo"),
    "GRPO-fix": objective("grpo_fix"),
    "GSPO": objective("gspo"),
    "GSPO, wide clip": objective("gspo", clip_low=0.2, clip_high=0.2),
    "DFPO without transform": objective("dfpo_none"),
    "DFPO min": objective("dfpo_min"),
    "DFPO orth": objective("dfpo_orth"),
    "DFPO min, no stop": objective("dfpo_min_no_stop"),
    "DFPO, half weights": objective("dfpo_scale"),
}
SPELLED = ("GRPO", "GRPO-fix", "GSPO", "GSPO, wide clip", "DFPO without transform", "DFPO min", "DFPO orth")
GROUPS = (2, 4, 8)
CANCEL_RATE = 1e-4
"""GSPO learns at it, and at clip ranges of 3e-4 and 4e-4 0.1 to 0.4 of its tokens are clipped."""


def _cancel(task: str, policies: Mapping[str, Json], name: str, group: int = 16) -> Arm:
    changes = {
        "task": task,
        "model": "tiny-dense",
        "engines": EQUAL,
        "prompts_per_step": 4,
        "group_size": group,
    }
    # Four times the rate leaves the ratios of a group as close to one: a standard deviation of 0.02 at most.
    changes |= {"optimizer.learning_rate": CANCEL_RATE, "schedule.lr_warmup_steps": 20}
    label = name if group == 16 else f"{name}, G = {group}"
    return Arm({**changes, **CANCEL[name]}, policies, label=label)


CANCEL_ARMS = {f"template: {name}": _cancel("template", TEMPLATE_POLICIES, name) for name in CANCEL}
CANCEL_ARMS |= {
    f"two_spellings: {name}": _cancel("two_spellings", SPELLING_POLICIES, name) for name in SPELLED
}
CANCEL_ARMS |= {
    f"template: {name}, G = {group}": _cancel("template", TEMPLATE_POLICIES, name, group)
    for name in ("GSPO", "DFPO min")
    for group in GROUPS
}
