"""Simulate the decision rule itself: how often a family of criteria is wrongly or rightly called supported.

Standard deviations and margins are those of the stored primary criteria of each paper. Every synthetic study
draws one contrast per criterion and initial policy, normal or from the stored residuals, around no
effect, the margin, or twice the margin. The rule is that of `simlab.studies.verdicts`: Student's t and exact
sign flips at the margin, Holm's method over the family, looks at 16 and 24 initial policies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from simlab.core.experiment import Experiment, Run
from simlab.studies.board import measurements
from simlab.studies.loading import load_claims, load_papers
from simlab.studies.power import power_of_mean
from simlab.studies.registration import LOOKS
from simlab.studies.samples import RatioOfMeans
from simlab.studies.sequential import Looks
from simlab.studies.sign_flips import flip_count
from simlab.studies.statistics import holm
from simlab.studies.verdicts import ALPHA

STUDIES, SMOKE_STUDIES = 4000, 50
TRUTHS = {"no effect": 0.0, "at the margin": 1.0, "twice the margin": 2.0}
DESIGNS = {"8 policies, one look": (8,), "16 and 24 policies": LOOKS}
DISTRIBUTIONS = ("normal", "stored residuals")
GRID = np.geomspace(1e-9, 0.4, 80)


@dataclass(frozen=True)
class Family:
    """The primary criteria of a paper: std of each contrast over its margin, and whether none is claimed."""

    paper: str
    spreads: np.ndarray
    absent: np.ndarray
    residuals: np.ndarray


def load_families() -> list[Family]:
    """Return the families of the stored results; criteria on means and shares, not on proportions."""
    claims, families = load_claims(), []
    measured = measurements()[0]
    for paper in load_papers():
        spreads, absent, residuals = [], [], []
        for each in measured:
            criterion, sample = each.trial.primary, each.primary
            if claims[each.trial.claim].paper != paper or not isinstance(sample, RatioOfMeans):
                continue
            if not criterion.is_sampled:
                continue
            values = sample.contrasts(sample.estimate)
            scale = 1.0 if sample.denominator is None else abs(float(sample.denominator.mean()))
            std = float(values.std(ddof=1))
            if std > 0 and scale > 0:
                spreads.append(std / scale / criterion.margin)
                absent.append(criterion.direction == "zero")
                residuals.append((values - values.mean()) / values.std())
        if len(spreads) > 1:
            pooled = np.concatenate(residuals)
            families.append(Family(paper, np.array(spreads), np.array(absent), pooled))
    return families


def run(run: Run) -> None:
    """Write the table `rates`, a row per paper, distribution, design and truth."""
    studies = SMOKE_STUDIES if run.smoke else STUDIES
    run.configure(studies=studies, alpha=ALPHA, looks=list(LOOKS))
    rng = np.random.default_rng(*run.seeds([0]))
    families = load_families()
    rows = []
    for family in run.track(families[:1] if run.smoke else families, "families", len(families)):
        for distribution in DISTRIBUTIONS:
            for design, looks in DESIGNS.items():
                for truth, times in TRUTHS.items():
                    supported = simulate(rng, family, distribution, looks, times, studies)
                    rows.append(
                        {"paper": family.paper, "distribution": distribution}
                        | {"design": design, "truth": truth}
                        | summarize(family, supported, looks, times)
                    )
    run.table("rates", rows)


def simulate(
    rng: np.random.Generator,
    family: Family,
    distribution: str,
    looks: Sequence[int],
    times: float,
    studies: int,
) -> np.ndarray:
    """Return [studies, criteria] whether each criterion is supported, at a truth of `times` the margin."""
    shape = (studies, len(family.spreads), looks[-1])
    draws = rng.normal(size=shape) if distribution == "normal" else rng.choice(family.residuals, size=shape)
    values = times + family.spreads[:, None] * draws
    deciding = Looks(tuple(looks)).deciding
    p = np.ones(shape[:2])
    stopped = np.zeros(shape[:2], bool)
    for policies in deciding:
        seen = values[:, :, :policies]
        now = t_p_values(seen, family.absent)
        # Sign flips only raise p-values: what Student's t does not support needs none.
        open_now = ~stopped & (holm(np.where(stopped, p, overall_p(now, deciding, policies))) <= ALPHA)
        for study, index in zip(*np.nonzero(open_now), strict=True):
            flips = flip_p_value(seen[study, index], bool(family.absent[index]))
            now[study, index] = max(now[study, index], flips)
        p = np.where(stopped, p, overall_p(now, deciding, policies))
        stopped |= holm(p) <= ALPHA
    return stopped


def t_p_values(values: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """Return [studies, criteria] Student's p-value of a support of contrasts [studies, criteria, policies].

    Contrasts are in units of the margin; where a criterion claims no effect both margins are tested.
    """
    count = values.shape[-1]
    mean, error = values.mean(-1), values.std(-1, ddof=1) / np.sqrt(count)
    above = 2 * stats.t.sf((mean - 1) / error, count - 1)
    inside = 2 * stats.t.sf((1 - np.abs(mean)) / error, count - 1)
    return np.minimum(np.where(absent, inside, above), 1.0)


def flip_p_value(values: np.ndarray, absent: bool) -> float:
    """Return twice the sign-flip p-value of contrasts [policies]; 0 where no flip says more."""
    sides = (values + 1, 1 - values) if absent else (values - 1,)
    counts = [flip_count(side) for side in sides]
    return max(0.0 if count == 1 else 2 * count / total for count, total in counts)


def overall_p(p: np.ndarray, deciding: tuple[int, ...], policies: int) -> np.ndarray:
    """Return the error rate of all looks at which a look with p-value `p` just decides, by interpolation."""
    if len(deciding) < 2:
        return p
    nominal = np.array([Looks((0, *deciding)).nominal(float(alpha), policies) for alpha in GRID])
    return np.exp(np.interp(np.log(np.maximum(p, 1e-300)), np.log(nominal), np.log(GRID), right=0.0))


def summarize(
    family: Family, supported: np.ndarray, looks: Sequence[int], times: float
) -> dict[str, float | int | None]:
    """Return the rate of families with a false support, the power, and the power that is claimed."""
    is_true = ~family.absent if times > 1 else family.absent if times < 1 else np.zeros_like(family.absent)
    false = int(supported[:, ~is_true].any(1).sum())
    studies, count = supported.shape
    deciding = Looks(tuple(looks))
    alpha = deciding.nominal(ALPHA / count, looks[-1])
    claimed = [
        power_of_mean(1.0, float(std), looks[-1], alpha, bool(absent))
        for std, absent in zip(family.spreads[is_true], family.absent[is_true], strict=True)
    ]
    return {
        "criteria": count,
        "studies": studies,
        "false_support": false / studies,
        "false_support_high": float(stats.beta.ppf(0.975, false + 1, studies - false)),
        "true_criteria": int(is_true.sum()),
        "power": float(supported[:, is_true].mean()) if is_true.any() else None,
        "claimed_power": float(np.mean(claimed)) if claimed else None,
    }


EXPERIMENT = Experiment(
    name="decision_rule",
    question="How often does the decision rule err, and how often does it find what is there?",
    decision_rule=(
        "A false support in at most 5% of the families of synthetic studies, with no effect and at the "
        "margin; power at least as claimed for the last look at the Bonferroni level."
    ),
    run=run,
    minutes=2.0,
    kind="measurement",
)
