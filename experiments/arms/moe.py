"""Arms of an MoE alone: a router in float32, routing replay, and runs with a learning rate near 0."""

from experiments.arms.changes import EQUAL, FP32_ROUTER, NEAREST_E4M3, TRUNCATED
from experiments.regimes import CONTROL
from simlab.core.json_value import Json
from simlab.studies.design import Arm

ROUTER, R2, R3 = "fp32 router", "R2", "R3"
MOE_MODEL: dict[str, Json] = {"model": {"name": "tiny-moe", "qk_norm": False}}
"""The model of the regime with eight experts of a third of its width, of which two compute a token."""


def _replay(mode: str) -> dict[str, Json]:
    return {"engines": {**TRUNCATED.engines()["engines"], "replay": mode}}


ROUTER_ARMS = {
    ROUTER: Arm(TRUNCATED.engines(**FP32_ROUTER)),
    **{mode: Arm(_replay(mode)) for mode in (R2, R3)},
}
AT_REST = {
    "BF16": {"name": CONTROL},
    "E4M3": NEAREST_E4M3.engines()["engines"],
    "truncation": TRUNCATED.engines()["engines"],
    "router in E4M3": {"name": EQUAL, "infer": {"router": {"activations": "e4m3fn", "weights": "e4m3fn"}}},
}
"""Engines for MoE policies that do not learn, so that two arms score the same responses."""
REST_STEPS, REST_RATE = 10, 1e-9
