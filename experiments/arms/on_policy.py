"""Arms in the setting of *lr*, on chains of 64 terms: on-policy, RLOO, clip 0.2 and 0.28."""

from experiments.arms.chains import MEAN_RATE, MIS, RATE, SEQ_MIS, SEQ_TIS, SLOW, TIS
from experiments.arms.changes import PERIOD, objective, schedule
from experiments.arms.names import constant_arm, halving_arm, rloo_arm
from experiments.regimes import CONTROL
from simlab.core.json_value import Json
from simlab.studies.design import Arm

RLOO, RLOO_BF16, RLOO_FEW, RLOO_FP16 = "RLOO", "RLOO, BF16", "RLOO, 25% of the prompts", "RLOO, FP16"


def _rloo(correction: str, /, **changes: Json) -> Arm:
    maximized = objective(f"rloo{correction}", clip_low=0.2, clip_high=0.28)
    return Arm({**maximized, "minibatches": 1, **changes})


RLOO_ARMS = {
    RLOO: _rloo(""),
    RLOO_BF16: _rloo("", engines=CONTROL),
    RLOO_FEW: _rloo("", **{"task.train_size": 1024}),
    RLOO_FP16: _rloo("", engines="fp16/fp16"),
    halving_arm(RLOO_FP16): _rloo("", engines="fp16/fp16", **schedule("halving", period=PERIOD)),
    **{
        rloo_arm(name): _rloo(correction)
        for name, correction in ((TIS, "+tis"), (MIS, "+mis"), (SEQ_TIS, "+seq_tis"), (SEQ_MIS, "+seq_mis"))
    },
    rloo_arm(SLOW): _rloo("", **{"optimizer.learning_rate": RATE / 10}),
    **{
        halving_arm(name): _rloo(correction, **schedule("halving", period=PERIOD))
        for name, correction in ((RLOO, ""), (rloo_arm(TIS), "+tis"), (rloo_arm(MIS), "+mis"))
    },
    constant_arm(rloo_arm(MIS)): _rloo("+mis", **{"optimizer.learning_rate": MEAN_RATE}),
}
