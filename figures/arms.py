"""Styles of arms: the untreated arm and the control of an experiment look the same in all figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from figures.style import COLORS, DASHES, ArmStyle
from simlab.studies.arms import Arm
from simlab.studies.contrasts import minus
from simlab.studies.design import Design
from simlab.studies.loading import load_claims, load_experiment
from simlab.studies.records import Criterion, trials_of

UNTREATED, CONTROL = 0, len(COLORS) - 1
"""Numbers of the styles that no other arm takes."""
FREE = range(1, CONTROL)


@dataclass(frozen=True)
class ArmRoles:
    """Arms of an experiment by role: the untreated arm, and controls, the most important first."""

    untreated: str = ""
    controls: Sequence[str] = ()


NO_ROLES = ArmRoles()


def find_roles(experiment: str) -> ArmRoles:
    """Return the baseline of the design of an experiment, and the controls of its criteria."""
    design = load_experiment(experiment).design
    if not isinstance(design, Design):
        return NO_ROLES
    trials = trials_of(list(load_claims().values()), experiment)
    criteria = [criterion for trial in trials for criterion in trial.criteria]
    untreated = design.arms[design.baseline]
    controls = dict.fromkeys(_find_control(each, untreated) for each in criteria)
    return ArmRoles(untreated.id, [arm.id for arm in controls if arm])


def _find_control(criterion: Criterion, untreated: Arm) -> Arm | None:
    """Return the arm that a criterion names as control.

    A premise that the untreated arm is worse than another arm names it as well.
    """
    own = getattr(criterion.contrast, "control", None)
    if own or criterion.role != "manipulation" or criterion.direction != "negative":
        return own
    return next((arm for arm in criterion.arms if criterion.contrast == minus(untreated, arm)), None)


def arm_styles(
    arms: Sequence[str], labels: Mapping[str, str] | None = None, roles: ArmRoles = NO_ROLES
) -> dict[str, ArmStyle]:
    """Return the color, dashes and legend label of each arm.

    The untreated arm and the first control among `arms` have styles that no other arm takes.
    """
    fixed = dict.fromkeys([each for each in roles.controls if each in arms][:1], CONTROL)
    fixed |= {roles.untreated: UNTREATED}
    numbers = count()
    styles: dict[str, ArmStyle] = {}
    for arm in arms:
        color = dashes = fixed.get(arm, UNTREATED)
        if arm not in fixed:
            turn, place = divmod(next(numbers), len(FREE))
            color, dashes = FREE[place], FREE[(place + turn) % len(FREE)]
        styles[arm] = {"color": COLORS[color], "ls": DASHES[dashes], "label": (labels or {}).get(arm, arm)}
    return styles
