"""Arms and designs: configs, the columns that select an arm, and differences from the baseline."""

import json
from dataclasses import replace

import pytest

from simlab.engines import ENGINES, EnginePair
from simlab.studies.design import Arm
from simlab.tasks import TASKS

BASE = {"task": "add", "model": "tiny-dense"}
OWN_ENGINE = replace(ENGINES["bf16"], lm_head=ENGINES["f32"].lm_head)
OWN_PAIR = EnginePair(ENGINES["f32"], OWN_ENGINE)
SORTED = TASKS["sort"](difficulty=2, train_size=64, held_out_size=16)


@pytest.mark.parametrize(
    ("engines", "sides"),
    [
        ("f32/bf16", ("f32", "bf16")),
        (EnginePair(ENGINES["f32"], ENGINES["bf16"]), ("f32", "bf16")),
        (EnginePair(ENGINES["bf16"], OWN_ENGINE), ("bf16", f"{__name__}:OWN_ENGINE")),
        (f"f32/{__name__}:OWN_ENGINE", ("f32", f"{__name__}:OWN_ENGINE")),
        (OWN_PAIR, ("f32", f"{__name__}:OWN_ENGINE")),
        ({"name": "f32/bf16", "replay": "R3"}, ("f32", "bf16")),
    ],
)
def test_arm_attributes_name_both_engines(engines, sides):
    attributes = Arm({"engines": engines}).attributes(BASE)
    assert (attributes["train_engine"], attributes["infer_engine"]) == sides


def test_arm_of_records_is_recorded_by_name():
    arm = Arm({"engines": OWN_PAIR, "task": SORTED, "objective": "grpo"})
    changes = json.loads(json.dumps(arm.recorded))["changes"]
    assert changes["engines"]["name"] == f"{__name__}:OWN_PAIR"
    assert changes["task"] == {
        "name": "sort",
        "difficulty": 2,
        "held_out_size": 16,
        "seed": 0,
        "train_size": 64,
    }
    assert changes["objective"] == "grpo"
    assert not arm.differs_from(arm.recorded)
