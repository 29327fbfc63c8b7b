"""Treatments in the setting of *lr*: on-policy, RLOO, clip 0.2 and 0.28."""

from experiments.arms.changes import RATE, objective
from experiments.regimes import CONTROL
from simlab.core.json_value import Json
from simlab.studies.arms import Arm


def _rloo(name: str, correction: str = "", /, **changes: Json) -> Arm:
    maximized = objective(f"rloo{correction}", clip_low=0.2, clip_high=0.28)
    return Arm(name, {**maximized, "minibatches": 1, **changes})


RLOO = _rloo("RLOO")
RLOO_BF16 = _rloo("RLOO, BF16", engines=CONTROL)
RLOO_FP16 = _rloo("RLOO, FP16", engines="fp16/fp16")
RLOO_FEW = _rloo("RLOO, 25% of the prompts", **{"task.train_size": 1024})
RLOO_SLOW = _rloo("RLOO, learning rate / 10", **{"optimizer.learning_rate": RATE / 10})
RLOO_TIS = _rloo("RLOO, token TIS", "+tis")
RLOO_MIS = _rloo("RLOO, token MIS", "+mis")
RLOO_SEQ_TIS = _rloo("RLOO, sequence TIS", "+seq_tis")
RLOO_SEQ_MIS = _rloo("RLOO, sequence MIS", "+seq_mis")
