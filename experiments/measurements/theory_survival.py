"""Compute the exact survival bias: mean rho by probability bin for each format, sorted by either policy.

Logits are N(0, 1.5^2) over 2048 tokens, as in the papers' softmax study; only the logits are rounded, so
that no probability underflows. The mean over sampled tokens is a sum over the vocabulary, not a sample.
"""

from typing import Any

import numpy as np

from experiments.papers.hacking import H4
from simlab.core.results import Results
from simlab.formats import FORMATS
from simlab.studies import Measured
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.samples import Exact
from simlab.theory.expectation import softmax
from simlab.theory.importance import mean_rho_in_bins, survival_bias
from simlab.theory.rounding_error import round_softmax

# All formats with a sign and an exponent that are coarser than float32.
FLOATS = [name for name in FORMATS if name not in ("fp32", "e8m0") and not name.startswith("int")]
ENGINES = {
    name + suffix: (name, rounding)
    for name in FLOATS
    for suffix, rounding in (("", "nearest_even"), (" truncated", "toward_zero"))
}
NOISE = 0.2
STD = 1.5
EDGES = np.geomspace(1e-6, 1e-1, 16)
SORTS = ("train", "infer")
"""The policies that may sort the tokens into bins."""


def curve(name: str, train: np.ndarray, infer: np.ndarray, by: str) -> list[dict]:
    """Rows of one engine: bin, policy that sorts, mean rho, sampled mass."""
    columns = zip(EDGES[:-1], EDGES[1:], *mean_rho_in_bins(train, infer, EDGES, by), strict=True)
    return [
        {"engine": name, "by": by, "low": low, "high": high, "mean_rho": mean, "mass": mass}
        for low, high, mean, mass in columns
    ]


def run(run: ExperimentContext) -> None:
    """Write the table `survival`."""
    run.seeds([0])
    count, vocabulary = (20, 256) if run.smoke else (400, 2048)
    run.configure(rows=count, vocabulary=vocabulary, logit_std=STD, noise_std=NOISE, rounded="logits")
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=STD, size=(count, vocabulary))
    train = softmax(logits)
    table = []
    with run.phase("curves"):
        for name, (fmt, rounding) in run.track(list(ENGINES.items()), "formats"):
            rounded = round_softmax(logits, fmt, rounding, ("logits",))
            table += [row for by in SORTS for row in curve(name, train, rounded, by)]
        # Each noise with its negative: odd orders, which average to zero, vanish at once.
        noise = NOISE * rng.normal(size=logits.shape)
        both = np.tile(train, (2, 1))
        noisy = softmax(np.concatenate([logits + noise, logits - noise]))
        table += [row for by in SORTS for row in curve("gaussian noise", both, noisy, by)]
        for by, sorting in zip(SORTS, (both, noisy), strict=True):
            bias = survival_bias(sorting, NOISE**2, by, STD**2)
            table += curve("predicted", sorting * (1 + bias), sorting, by)
    run.table("survival", table)


LEAST_MASS = 1e-3


def collect_evidence(results: Results) -> list[Measured]:
    """H4 without training: engine noise, sorted by the training policy as in the paper."""
    table: Any = results.table("survival")
    frequent = table[table["mass"] > LEAST_MASS]
    rarest = frequent.sort_values("low").groupby(["engine", "by"]).first()["mean_rho"] - 1
    sample = Exact(float(rarest["gaussian noise", "train"]))
    shown = ("gaussian noise", "infer"), ("e4m3fn truncated", "train"), ("e4m3fn truncated", "infer")
    listed = "; ".join(f"{engine} by pi_{by} {rarest[engine, by]:+.4f}" for engine, by in shown)
    return [Measured(H4.trial("theory_survival"), (sample,), f"Others: {listed}")]


EXPERIMENT = Experiment(
    name="theory_survival",
    question="Is the mean of rho of rare tokens below 1, and does it depend on which policy sorts them?",
    decision_rule=H4.trial("theory_survival").text,
    run=run,
    minutes=0.2,
    claims=(H4.id,),
    kind="identity",
    collect_evidence=collect_evidence,
)
