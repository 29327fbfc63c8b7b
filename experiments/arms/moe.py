"""Treatments of MoE alone: routing replay R3, and engines for policies at rest."""

from dataclasses import replace

from experiments.arms.changes import EQUAL, NEAREST_E4M3, TRUNCATED
from experiments.regimes import CONTROL
from simlab.core.json_value import Json
from simlab.studies.arms import Arm

R3 = Arm("R3", {"engines": {**TRUNCATED.engines()["engines"], "replay": "R3"}})


def _at_rest(name: str, engines: dict[str, Json]) -> Arm:
    return Arm(name, {"engines": {**engines, "replay": "none"}})


def with_r3(arm: Arm) -> Arm:
    """Return the placed arm with routing replay R3."""
    changes = {**arm.changes, "engines": {**arm.changes["engines"], "replay": "R3"}}
    return replace(arm, id=f"{arm.id}, R3", label=f"{arm.label}, R3", changes=changes)


REST_BF16 = _at_rest("BF16", {"name": CONTROL})
REST_E4M3 = _at_rest("E4M3", NEAREST_E4M3.engines()["engines"])
REST_TRUNCATED = _at_rest("truncation", TRUNCATED.engines()["engines"])
REST_ROUTER = _at_rest(
    "router in E4M3",
    {"name": EQUAL, "infer": {"router": {"activations": "e4m3fn", "weights": "e4m3fn"}}},
)
