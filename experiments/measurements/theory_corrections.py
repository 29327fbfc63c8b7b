"""Compute exact bias and variance of every correction and mask for the IS ratio at equal mismatch.

All sequences of a tabular policy (V = 3) are enumerated, so there is no sampling error. The standard
deviation is over policies, engine noises and reward tables.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.papers.recent import N1
from experiments.papers.vexact import V4
from simlab.core.results import Results
from simlab.models.tabular import enumerate_sequences
from simlab.studies import Measured
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.samples import mean_of_policies
from simlab.theory.budget import effective_fraction, effective_fraction_of_chain
from simlab.theory.correction_moments import (
    ACRL_LEVEL,
    CORRECTIONS,
    VOCABULARY,
    Correction,
    best_mse,
    qualities,
    random_pair,
)
from simlab.theory.expectation import random_rewards
from simlab.theory.recent_corrections import FAMILIES, RECENT, mask_fractions, sharpen_pair, token_kl

GROUP = 16
SAMPLES = (64, 1024, 16384)
"""Numbers of groups over which a gradient is averaged."""
LONGEST_RECENT = 6


def moments(
    length: int, rho_std: float, seed: int, corrections: Mapping[str, Correction] = CORRECTIONS
) -> list[dict]:
    """One row per correction: bias, std, angle, norm, and the error over several sample sizes."""
    policies = random_pair(length, rho_std, seed)
    rewards = random_rewards(policies.space, seed)
    case = {"length": length, "rho_std": rho_std, "seed": seed}
    return [
        case
        | {"correction": name, "bias": each.bias, "std": each.std, "angle": each.angle, "norm": each.norm}
        | {f"mse_{groups}": each.mse(groups) for groups in SAMPLES}
        for name, each in qualities(policies, rewards, GROUP, corrections=corrections).items()
    ]


def measure_masked(seed: int) -> list[dict]:
    """Return the fraction of tokens that each trust region drops, for three kinds of growing mismatch."""
    space = enumerate_sequences(64, 1)
    rows = []
    for family, levels in FAMILIES.items():
        for scale, noise in levels:
            policies = sharpen_pair(space, seed, scale, noise)
            level = {"family": family, "scale": scale, "noise": noise, "seed": seed}
            level |= {"gap": token_kl(policies)}
            masked = mask_fractions(policies).items()
            rows += [level | {"rule": rule, "masked": fraction} for rule, fraction in masked]
    return rows


def oracle(length: int, rho_std: float, seed: int) -> dict:
    """The least error that any weight per sequence can reach."""
    policies = random_pair(length, rho_std, seed)
    rewards = random_rewards(policies.space, seed)
    errors = {f"mse_{groups}": best_mse(policies, rewards, groups * GROUP) for groups in SAMPLES}
    return {"length": length, "rho_std": rho_std, "seed": seed, **errors}


def sample_sizes(rho_std: float, seed: int, lengths: tuple[int, ...]) -> list[dict]:
    """Expected effective sample size of sequence weights on a Markov chain, by length."""
    short = random_pair(6, rho_std, seed, memory=1)
    rows = [
        {
            "length": length,
            "fraction": effective_fraction_of_chain(short, length),
            "method": "transfer matrix",
        }
        for length in lengths
    ]
    rows.append({"length": 6, "fraction": effective_fraction(short), "method": "enumeration"})
    return [{"rho_std": rho_std, "seed": seed, **row} for row in rows]


def run(run: ExperimentContext) -> None:
    """Write the tables `moments`, `recent`, `masked`, `oracle` and `ess`."""
    seeds = run.seeds(range(2 if run.smoke else 8))
    lengths = (2, 4) if run.smoke else (1, 2, 4, 6, 8)
    levels = (0.03, 0.3) if run.smoke else tuple(float(d) for d in np.geomspace(0.01, 1.0, 9).round(4))
    run.configure(
        vocabulary=VOCABULARY,
        group_size=GROUP,
        lengths=list(lengths),
        rho_std=list(levels),
        advantage="rloo",
        acrl_level=ACRL_LEVEL,
    )
    cases = [(length, level, seed) for length in lengths for level in levels for seed in seeds]
    with run.phase("moments"):
        run.table("moments", [row for case in run.track(cases, "moments") for row in moments(*case)])
    with run.phase("recent"):
        some = [case for case in cases if case[0] <= LONGEST_RECENT]
        run.table("recent", [row for case in run.track(some, "recent") for row in moments(*case, RECENT)])
        run.table("masked", [row for seed in range(2 if run.smoke else 32) for row in measure_masked(seed)])
    with run.phase("oracle"):
        small = [case for case in cases if case[0] <= 4]
        run.table("oracle", [oracle(*case) for case in run.track(small, "oracle bound")])
    with run.phase("ess"):
        reach = tuple(2**k for k in range(0, 6 if run.smoke else 14))
        chosen = [(level, seed, reach) for level in levels for seed in seeds]
        run.table("ess", [row for case in run.track(chosen, "sample size") for row in sample_sizes(*case)])


JUDGED = {"length": 8, "rho_std": 0.1}
AFTER = "Rule written after the tables."


def collect_evidence(results: Results) -> list[Measured]:
    """Return V4 by the bias without correction at `JUDGED`, and N1 by the tokens that IcePop drops."""
    table: Any = results.table("moments")
    table = table[(table["length"] == JUDGED["length"]) & (table["rho_std"] == JUDGED["rho_std"])]
    case = f"T = {JUDGED['length']}, std rho {JUDGED['rho_std']}"
    biased = mean_of_policies(np.asarray(table[table["correction"] == "none"]["bias"], float))
    return [
        Measured(V4.trial("theory_corrections"), (biased,), f"{case}. {AFTER}"),
        _dropped_by_icepop(results),
    ]


def _dropped_by_icepop(results: Results) -> Measured:
    """Return the change of the fraction dropped between the ends of the family "both", over policies."""
    table: Any = results.table("masked")
    changes = {
        (rule, family): _change_over_gap(rows) for (rule, family), rows in table.groupby(["rule", "family"])
    }
    sample = mean_of_policies(np.asarray(changes["IcePop", "both"], float))
    listed = "; ".join(f"{rule}, {family} {change.mean():+.3f}" for (rule, family), change in changes.items())
    note = f"{AFTER} One token of 64, exact sums. Change by rule and family: {listed}"
    return Measured(N1.trial("theory_corrections"), (sample,), note)


def _change_over_gap(rows: Any) -> Any:
    """Return, per policy, the fraction dropped at its largest KL minus that at its smallest."""
    ordered = rows.sort_values("gap").groupby("seed").masked
    return ordered.last() - ordered.first()


EXPERIMENT = Experiment(
    name="theory_corrections",
    question="Which correction for the mismatch ratio has the least error, at which mismatch and length?",
    decision_rule=(
        "least mean squared error of the gradient, relative to |gradient|^2 and averaged over 8 policies, "
        "at 64, 1024 and 16384 groups of 16; exact sums, no sampling error"
    ),
    run=run,
    minutes=3.0,
    claims=(V4.id, N1.id),
    kind="identity",
    collect_evidence=collect_evidence,
)
