"""Arms whose injected noise makes a given mismatch: at each step that of another arm, or one at first."""

from experiments.arms.chains import NONE
from experiments.arms.changes import EQUAL
from simlab.studies.arms import Arm

LARGER, LARGER_WEIGHTS = 1.5, 1.75
"""With 1.5 fresh weight noise was not shown to be a quarter larger than fixed noise (`LOG.md`)."""
FIRST_MISMATCH = 0.25
"""RMS log rho in nats with which MoE begin under truncation, on average; dense policies begin with 0.38."""


def _following_noise(kind: str, words: str, factor: float = 1.0) -> Arm:
    changes = {"engines": EQUAL, "sampling.noise": {"kind": kind, "scale": 1.0}}
    noise = kind.replace("_", " ")
    return Arm(f"{noise} noise, {words}", changes, noise_follows=NONE, noise_factor=factor)


FRESH, RECENT, FIXED = (_following_noise(kind, "as large") for kind in ("fresh", "recent", "fixed"))
LARGER_FRESH, LARGER_RECENT, LARGER_FIXED = (
    _following_noise(kind, f"{LARGER:g} times as large", LARGER) for kind in ("fresh", "recent", "fixed")
)
FRESH_WEIGHTS = _following_noise("fresh_weight", f"{LARGER_WEIGHTS:g} times as large", LARGER_WEIGHTS)
FIXED_WEIGHTS = _following_noise("fixed_weight", "as large")
EQUAL_AT_FIRST = Arm(
    "fixed weight noise",
    {"engines": EQUAL, "sampling.noise": {"kind": "fixed_weight", "scale": 1.0}},
    noise_mismatch=FIRST_MISMATCH,
)
"""Of the kinds of noise this one harms as truncation does (`LOG.md`, `weight_noise`)."""
