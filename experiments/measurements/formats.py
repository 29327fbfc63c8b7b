"""Round a million numbers to each format in every rounding mode: error, range and number of levels."""

import jax
import numpy as np

from simlab.formats import FORMATS, ROUNDINGS, Format, quantize
from simlab.studies.experiment import Experiment, ExperimentContext

SEED = 0
LOWEST, HIGHEST = -28, 20
"""Exponents of two between which the magnitudes of the log-uniform numbers lie."""
BINS_PER_OCTAVE = 4


def run(run: ExperimentContext) -> None:
    """Quantize the same numbers in every format and mode; write `errors` and `profile`."""
    count = 20_000 if run.smoke else 1_000_000
    run.configure(count=count, lowest_exponent=LOWEST, highest_exponent=HIGHEST)
    (seed,) = run.seeds([SEED])
    inputs = draw_inputs(seed, count)
    key = jax.random.key(seed)
    # One program serves all formats and modes: they are data.
    compiled = jax.jit(lambda x, fmt, rounding: quantize(x, fmt, rounding=rounding, key=key))
    errors, profile = [], []
    for name in run.track(FORMATS, "formats"):
        fmt = FORMATS[name]
        for source, x in inputs.items():
            x = np.abs(x) if fmt.min_finite > 0 else x  # e8m0 has no sign
            for mode, rounding in ROUNDINGS.items():
                y = np.asarray(compiled(x, fmt, rounding))
                row = {"format": name, "rounding": mode, "input": source}
                errors.append(row | measure(x, y, fmt))
                if (source, mode) == ("log_uniform", "nearest_even"):
                    profile += [{"format": name} | bin_row for bin_row in error_by_magnitude(x, y, fmt)]
    run.table("errors", errors)
    run.table("profile", profile)


def draw_inputs(seed: int, count: int) -> dict[str, np.ndarray]:
    """Return float32 numbers of both signs: of log-uniform magnitude, and standard normal."""
    rng = np.random.default_rng(seed)
    magnitude = np.exp2(rng.uniform(LOWEST, HIGHEST, count))
    return {
        "log_uniform": (magnitude * rng.choice([-1, 1], count)).astype(np.float32),
        "normal": rng.standard_normal(count, np.float32),
    }


def measure(x: np.ndarray, y: np.ndarray, fmt: Format) -> dict[str, float | int | None]:
    """Compare y = Q(x) with x.

    `max_error` and `rms_error` are of |y - x| / max(|x|, smallest normal), over |x| up to the largest finite
    value. The bound is the unit roundoff 2^-(mantissa bits + 1) for rounding to nearest, including subnormals
    and integers, and twice that in the other modes.
    """
    magnitude = np.abs(x.astype(np.float64))
    inside = magnitude <= float(fmt.max_finite)
    error = np.abs(y.astype(np.float64) - x) / np.maximum(magnitude, 2.0 ** int(fmt.min_exponent))
    error = error[inside]
    return {
        "unit_roundoff": 2.0 ** -(int(fmt.mantissa_bits) + 1),
        "max_error": float(error.max()) if error.size else None,
        "rms_error": float(np.sqrt(np.mean(error**2))) if error.size else None,
        "saturated": float(1 - inside.mean()),
        "underflowed": float(((y == 0) & (x != 0)).mean()),
        "levels": int(np.unique(y).size),
    }


def error_by_magnitude(x: np.ndarray, y: np.ndarray, fmt: Format) -> list[dict[str, float]]:
    """Return the largest and the rms |y - x| / |x| in bins of log2 |x|, up to the end of the range."""
    magnitude = np.abs(x.astype(np.float64))
    relative = np.abs(y.astype(np.float64) - x) / magnitude
    bins = np.floor((np.log2(magnitude) - LOWEST) * BINS_PER_OCTAVE).astype(int)
    bins[magnitude > float(fmt.max_finite)] = -1
    rows = []
    for number in np.unique(bins[bins >= 0]):
        inside = relative[bins == number]
        rows.append(
            {
                "log2_magnitude": LOWEST + (int(number) + 0.5) / BINS_PER_OCTAVE,
                "max_relative_error": float(inside.max()),
                "rms_relative_error": float(np.sqrt(np.mean(inside**2))),
            }
        )
    return rows


EXPERIMENT = Experiment(
    name="formats",
    question="What does each number format do to a million numbers?",
    decision_rule="none: a description; to nearest, no error may exceed the unit roundoff",
    minutes=0.4,
    run=run,
)
