"""Arms and designs: configs, the columns that select an arm, and differences from the baseline."""

import json
from dataclasses import replace

import pytest

from simlab.engines import ENGINES, EnginePair
from simlab.studies.arms import Arm
from simlab.studies.design import Design
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
    attributes = Arm("arm", {"engines": engines}).attributes(BASE)
    assert (attributes["train_engine"], attributes["infer_engine"]) == sides


def test_arm_of_records_is_recorded_by_name():
    arm = Arm("arm", {"engines": OWN_PAIR, "task": SORTED, "objective": "grpo"})
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


def differences(**changes):
    return Design(BASE, {"none": Arm("none"), "arm": Arm("arm", changes)}, "none").differences("arm")


def test_differences_list_fields_without_reprs():
    changes = differences(objective="ppo", critic={"lam": 0.9}, sampling={"noise": {"scale": 0.5}})
    assert changes["objective"] == ("grpo", "ppo")
    assert changes["critic.lam"] == (None, 0.9)
    assert changes["critic.optimizer.beta1"] == (None, 0.9)
    assert changes["sampling.noise.kind"] == (None, "fresh")
    assert not {"critic", "critic.optimizer", "sampling.noise"} & set(changes)
    assert "(" not in json.dumps(changes)


def test_differences_compare_resolved_sites():
    truncated = {"name": "f32/bf16", "infer": {"projection": {"weights": {"rounding": "toward_zero"}}}}
    base = {**BASE, "engines": truncated}
    arms = {
        "truncated": Arm("truncated"),
        "nearest": Arm("nearest", {"engines": "f32/bf16"}),
        "both": Arm("both", {"engines": "bf16/bf16"}),
    }
    design = Design(base, arms, "truncated")
    rounding = ("toward_zero", "nearest_even")
    path = "engines.infer.projection.weights.rounding"
    assert design.differences("nearest") == {path: rounding}
    both = design.differences("both")
    assert both["engines"] == ("f32/bf16", "bf16/bf16")
    assert both["engines.train.lm_head.output.format"] == ("fp32", "bf16")
    assert both[path] == rounding


def test_differences_of_derived_fields_name_the_other_arm():
    own = {"objective": "grpo+acrl"}
    none = Arm("none")
    arms = {"none": none, "arm": Arm("arm", own, x_factor=2.0, x_from=none, forked_from=none)}
    changes = Design(BASE, arms, "none").differences("arm")
    assert changes["objective.acrl_reference"] == (None, "2 x first discrepancy of none")
    assert changes["forked_from"] == (None, "none")
    assert changes["objective.acrl_gamma"][0] is None


def test_a_measured_scale_of_the_noise_is_described():
    noise = {"sampling.noise": {"kind": "fixed_weight", "scale": 1.0}}
    arms = {"none": Arm("none"), "noise": Arm("noise", noise, noise_mismatch=0.25)}
    changes = Design(BASE, arms, "none").differences("noise")
    assert changes["sampling.noise.scale"] == (None, "that of an RMS log rho of 0.25 nats at first")
