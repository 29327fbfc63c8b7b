"""Claims of our own about the accumulators of tensor cores.

Experiments: `gpu_pairs` compares emulated GPUs on fixed policies; `accumulator_drift` trains with the
accumulator of one GPU against that of another.
"""

from math import log

from experiments.papers.shared import THREE_ANSWERS, claim_makers, trial
from simlab.studies import estimands as m
from simlab.studies.records import manipulation, mean_of, minus, primary, secondary

dynamics, measurement, _ = claim_makers("tensor cores")

# Arms of accumulator_drift.
SAME, GPUS, NARROWED = "H100 in both engines", "A100 and H100", "H100, 25 and 13 bits"
PLAIN, NOISY = "float32 and BF16", "the flagship's engines"
CONTROLS = (NARROWED, PLAIN)
"""Arms whose verdicts stand in the note of T5."""

# Margins of gpu_pairs, each with its reason.
ADDER_SHARE = 0.01
"""1% of the mean squared log rho."""
MATTERS, NOTHING = 0.1, 0.01
"""A tenth of the FP8 mismatch of an H100 matters, a hundredth does nothing."""

# fmt: off
CLAIMS = (
    measurement("T1", "Models of the accumulators reproduce every recorded tensor-core output bit for bit",
        "recorded vectors",
        trial("gpu_pairs",
            rule="the models are right if every output of every recorded vector is bitwise identical")),
    measurement("T2", "The narrow accumulator of an H100 has a part in its FP8 mismatch",
        "DeepSeek-V3 Sec. 3.3.2",
        trial("gpu_pairs",
            rule="the accumulator has a part in the FP8 mismatch of an H100 if the 95% interval of its "
            f"Shapley share of the mean squared log rho lies above {ADDER_SHARE}, none if it lies within "
            f"+-{ADDER_SHARE}")),
    measurement("T3", "The order of the same products matters compared with the FP8 mismatch", "our question",
        trial("gpu_pairs",
            rule="the order of the same products matters if its RMS log rho is, with its interval, above "
            f"{MATTERS} of that of h100-bf16/h100-fp8, and does nothing if below {NOTHING} of it")),
    measurement("T4", "Two GPUs that serve the same format differ", "our question",
        trial("gpu_pairs",
            rule="two GPUs of one format differ if RMS log rho of the pair is, with its interval, above "
            f"{MATTERS} of that of h100-bf16/h100-fp8, and do not if below {NOTHING} of it")),
    dynamics("T5", "The accumulators of two GPUs alone, at BF16 on both sides, make an on-policy run drift",
        "our question, V2 at its purest",
        trial("accumulator_drift",
            primary(m.REWARD, minus(GPUS, SAME), "negative", 0.03, because=THREE_ANSWERS),
            secondary(m.GROWTH, mean_of(GPUS), "positive", log(2), because="the mismatch doubles"),
            manipulation(m.REWARD, minus(NOISY, SAME), "negative", 0.03, because="three answers in 100"))),
)
# fmt: on
T1, T2, T3, T4, T5 = CLAIMS
