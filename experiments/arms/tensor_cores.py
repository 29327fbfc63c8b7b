"""Arms of `accumulator_drift`: engine pairs that differ only in the accumulators, and two references."""

from experiments.regimes import BASE, CONTROL
from simlab.core.json_value import Json
from simlab.studies.arms import Arm

NARROW = 13


def _narrow_accumulator() -> dict[str, Json]:
    core = {"fraction_bits": NARROW, "result_bits": NARROW}
    product = {"accumulator": core}
    attention = {"score_accumulator": core, "value_accumulator": {"inner": core}}
    return {"projection": product, "lm_head": product, "attention": attention}


H100 = "h100-bf16/h100-bf16"
SAME = Arm("H100 in both engines", {"engines": H100})
GPUS = Arm("A100 and H100", {"engines": "a100-bf16/h100-bf16"})
NARROWED = Arm("H100, 25 and 13 bits", {"engines": {"name": H100, "infer": _narrow_accumulator()}})
PLAIN = Arm("float32 and BF16", {"engines": CONTROL})
NOISY = Arm("the flagship's engines", {"engines": BASE["engines"]})
