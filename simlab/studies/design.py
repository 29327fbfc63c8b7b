"""The design of a training experiment: a base config, and the arms that change it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from simlab.core.json_value import Json
from simlab.studies.arms import Arm
from simlab.studies.differences import compare
from simlab.sweeps import recipe_of, run_config
from simlab.training.recipe import Recipe


@dataclass(frozen=True)
class Design:
    """Runs with which an experiment tests its claims.

    Args:
        base: the config that every run shares.
        arms: the arms by name, the baseline among them.
        baseline: the name of the arm that is not treated.
        smoke: the arms of smoke mode.
    """

    base: Mapping[str, Json]
    arms: Mapping[str, Arm]
    baseline: str
    smoke: Sequence[str] = ()

    def differences(self, name: str) -> dict[str, tuple[Json, Json]]:
        """Return (baseline, arm) of every field of the resolved config in which the two differ."""
        arms = [self.arms[each] for each in (self.baseline, name)]
        base, ours = (recipe_of(run_config(self.base, arm.changes)) for arm in arms)
        texts = [arm.describe_recipe(self.base) for arm in arms]
        named = {field: (texts[0].get(field), texts[1].get(field)) for field in {**texts[0], **texts[1]}}
        resolved = {
            path: (first, second)
            for each in fields(Recipe)
            for path, first, second in compare(getattr(base, each.name), getattr(ours, each.name), each.name)
        }
        # Names come first, and hold against values that follow from another arm.
        pairs = named | resolved | named
        return {field: (first, second) for field, (first, second) in pairs.items() if first != second}
