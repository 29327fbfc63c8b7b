"""Claims of this project about the accumulators of tensor cores.

Experiments: `gpu_pairs` compares emulated GPUs on fixed policies; `accumulator_drift` trains with the
accumulator of one GPU against that of another.
"""

from experiments.arms.tensor_cores import GPUS, NARROWED, NOISY, PLAIN, SAME
from experiments.papers.shared import FACTOR, FIVE_POINTS, GROWS, LOSS, REWARDS, claim_makers, trial
from experiments.regimes import ADDERS
from simlab.studies import estimands as m
from simlab.studies.contrasts import mean_of, minus
from simlab.studies.records import manipulation, primary, secondary, stored_row

dynamics, measurement, _ = claim_makers("tensor cores")

CONTROLS = (NARROWED, PLAIN)
"""Arms whose verdicts stand in the note of T5."""

# Margins of gpu_pairs, each with its reason.
ACCUMULATOR_SHARE = 0.01
"""1% of the mean squared log rho."""
MATTERS = 0.1
"""A tenth of the FP8 mismatch of an H100 matters."""
TENTH = "a tenth of the FP8 mismatch of an H100"
MODELS = (
    "The estimate is the mean over models and comparisons; the interval reaches from the lowest end of "
    "theirs to the highest, so that it lies beyond the margin only if each does"
)

# fmt: off
CLAIMS = (
    measurement("T1", "Models of the accumulators reproduce every recorded tensor-core output bit for bit",
        "recorded vectors",
        trial("gpu_pairs",
            stored_row("T1", "fraction of recorded outputs that differ in any bit", "zero", 1e-6,
                because="less than one of all recorded outputs", is_point=True))),
    measurement("T2", "The narrow accumulator of an H100 contributes to its FP8 mismatch",
        "DeepSeek-V3 Sec. 3.3.2",
        trial("gpu_pairs",
            stored_row("T2",
                "Shapley share of the accumulator in the mean squared log rho of h100-bf16/h100-fp8",
                "positive", ACCUMULATOR_SHARE, because="1% of the mean squared log rho"),
            note=MODELS)),
    measurement("T3", "The order of summation matters compared with the FP8 mismatch",
        "our question",
        trial("gpu_pairs",
            stored_row("T3", "RMS log rho of another order, over that of h100-bf16/h100-fp8",
                "positive", MATTERS, because=TENTH),
            note=MODELS)),
    measurement("T4",
        "Two GPUs that compute in the same format differ",
        "our question",
        trial("gpu_pairs",
            stored_row("T4", "RMS log rho of two GPUs of one format, over that of h100-bf16/h100-fp8",
                "positive", MATTERS, because=TENTH),
            note=MODELS)),
    dynamics("T5",
        "A difference in accumulators alone, with BF16 in both engines, makes an on-policy run drift",
        "our question; compare V2",
        trial("accumulator_drift",
            primary(m.REWARD, minus(GPUS, SAME), "negative", REWARDS, because=FIVE_POINTS),
            secondary(m.GROWTH, mean_of(GPUS), "positive", FACTOR, because=GROWS),
            manipulation(m.REWARD, minus(NOISY, SAME), "negative", LOSS,
                because="0.1 of the largest reward under engines that collapse runs"),
            regime=ADDERS,
            note="The control has no mismatch, so growth is against the start of the same run.")),
)
# fmt: on
T1, T2, T3, T4, T5 = CLAIMS
