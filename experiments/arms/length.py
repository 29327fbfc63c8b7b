"""Arms on recurrences, with up to 128 tokens per response; longer responses get more reward."""

from experiments.arms.chains import MIS, TIS
from experiments.arms.changes import TRUNCATED, objective, schedule
from experiments.policies import RECURRENCE_POLICIES
from experiments.regimes import CONTROL
from simlab.core.json_value import Json
from simlab.studies.design import Arm

SURGE = 2.0
"""A surge begins where responses are this many times as long as in the first steps."""
WIDER: dict[str, Json] = {"model": {"name": "tiny-llama", "hidden_size": 96, "intermediate_size": 160}}
PERIODS = {"triggered": 1.8, "triggered late": 250 / 110}
"""Periods over the step of the surge: that of the paper, and the one under which its 4B model collapses."""
LENGTHS = {
    "no schedule": {},
    "BF16": {"engines": CONTROL},
    **{name: schedule("length-triggered", rise=SURGE, delay=delay) for name, delay in PERIODS.items()},
}
TRIGGERED = schedule("length-triggered", rise=SURGE, delay=PERIODS["triggered"])
CORRECTED = {
    f"{name}{end}": {**objective(loss, correction_clip=2.0), **change}
    for name, loss in ((MIS, "grpo+mis"), (TIS, "grpo+tis"))
    for end, change in (("", {}), (", triggered", TRIGGERED))
}
"""Corrections of *lr*, with and without the schedule."""
RECURRENCE: dict[str, Json] = {
    "task": {"name": "recurrence", "difficulty": 128},
    "prompts_per_step": 4,
    "optimizer.learning_rate": 4e-4,
    **TRUNCATED.engines(),
    **objective("grpo"),
}
LENGTH_ARMS = {
    f"length: {name}": Arm({**RECURRENCE, **changes}, RECURRENCE_POLICIES, label=name)
    for name, changes in (LENGTHS | CORRECTED).items()
}
LENGTH_ARMS |= {
    f"length, wide: {name}": Arm(
        {**RECURRENCE, **WIDER, **LENGTHS[name]}, RECURRENCE_POLICIES, label=f"wide: {name}"
    )
    for name in ("no schedule", "BF16", *PERIODS)
}
