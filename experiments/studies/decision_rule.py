"""Simulate the decision rule itself: how often a family of criteria is wrongly or rightly called supported.

Standard deviations and margins are those of the stored primary criteria of each paper. Every synthetic study
draws one contrast per criterion and initial policy, normal or from the stored residuals of that criterion,
around no effect, the margin, or twice the margin. The rule is that of `simlab.studies.verdicts`: Student's t, the same
corrected for skewness, and exact sign flips at the margin, exact binomial tests of proportions, Holm's method
over the family, looks at 16 and 24 initial policies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from simlab.core.experiment import Experiment, Run
from simlab.studies.board import measurements
from simlab.studies.loading import load_claims, load_papers
from simlab.studies.power import p_by_count, power_of_mean, power_of_proportion, true_proportion
from simlab.studies.records import Criterion
from simlab.studies.registration import LOOKS
from simlab.studies.samples import Proportion, RatioOfMeans, skewed_t_p, skewness, t_p
from simlab.studies.sequential import Looks
from simlab.studies.sign_flips import doubled_flip_p
from simlab.studies.statistics import holm
from simlab.studies.verdicts import ALPHA

STUDIES, SMOKE_STUDIES = 4000, 50
TRUTHS = {"no effect": 0.0, "at the margin": 1.0, "twice the margin": 2.0}
DESIGNS = {"8 policies, one look": (8,), "16 and 24 policies": LOOKS}
DISTRIBUTIONS = ("normal", "stored residuals")
GRID = np.geomspace(1e-9, 0.4, 80)


@dataclass(frozen=True)
class Family:
    """The primary criteria of a paper.

    Args:
        paper: its name.
        spreads: std of the contrast over the margin, of each criterion on a mean or a share.
        absent: whether such a criterion claims no effect.
        residuals: of each such contrast, the standardized residuals, positive in the claimed direction.
        proportions: the criteria on proportions, each with its stored sample.
    """

    paper: str
    spreads: np.ndarray
    absent: np.ndarray
    residuals: tuple[np.ndarray, ...]
    proportions: tuple[tuple[Criterion, Proportion], ...] = ()

    @property
    def claims_absence(self) -> np.ndarray:
        """Whether each criterion claims no effect, those on proportions last."""
        return np.append(self.absent, [each.direction == "zero" for each, _ in self.proportions]).astype(bool)


def load_families() -> list[Family]:
    """Return the families of the stored results."""
    claims, measured = load_claims(), measurements()[0]
    families = []
    for paper in load_papers():
        sampled = [
            (each.trial.primary, each.primary)
            for each in measured
            if claims[each.trial.claim].paper == paper and each.trial.primary.is_sampled
        ]
        spreads, absent, residuals = [], [], []
        for criterion, sample in sampled:
            if not isinstance(sample, RatioOfMeans):
                continue
            values = sample.contrasts(sample.estimate)
            scale = 1.0 if sample.denominator is None else abs(float(sample.denominator.mean()))
            std = float(values.std(ddof=1))
            if std > 0 and scale > 0:
                spreads.append(std / scale / criterion.margin)
                absent.append(criterion.direction == "zero")
                claimed = -1 if criterion.direction == "negative" else 1
                residuals.append(claimed * (values - values.mean()) / values.std())
        if len(spreads) > 1:
            proportions = tuple((each, sample) for each, sample in sampled if isinstance(sample, Proportion))
            families.append(Family(paper, np.array(spreads), np.array(absent), tuple(residuals), proportions))
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
                        | summarize(family, supported, distribution, looks, times)
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
    """Return [studies, criteria] whether each criterion is supported, at a truth of `times` the margin.

    Criteria on proportions come last.
    """
    shape = (studies, len(family.spreads), looks[-1])
    if distribution == "normal":
        draws = rng.normal(size=shape)
    else:
        draws = np.stack([rng.choice(own, size=(studies, looks[-1])) for own in family.residuals], 1)
    values = times + family.spreads[:, None] * draws
    hits = draw_hits(rng, family, times, shape[0], shape[2])
    deciding = Looks(tuple(looks)).deciding
    p = np.ones((studies, len(family.claims_absence)))
    stopped = np.zeros(p.shape, bool)
    for policies in deciding:
        seen = values[:, :, :policies]
        now = np.append(t_p_values(seen, family.absent), hit_p_values(family, hits, policies), axis=1)
        # Sign flips only raise p-values: what Student's t does not support needs none.
        open_now = ~stopped & (holm(np.where(stopped, p, overall_p(now, deciding, policies))) <= ALPHA)
        for study, index in zip(*np.nonzero(open_now[:, : shape[1]]), strict=True):
            flips = flip_p_value(seen[study, index], bool(family.absent[index]))
            now[study, index] = max(now[study, index], flips)
        p = np.where(stopped, p, overall_p(now, deciding, policies))
        stopped |= holm(p) <= ALPHA
    return stopped


def draw_hits(
    rng: np.random.Generator, family: Family, times: float, studies: int, policies: int
) -> np.ndarray:
    """Return [studies, proportions, policies] whether a trial is a hit, at a truth of `times` the margin."""
    truths = [true_proportion(sample, each, times * each.margin) for each, sample in family.proportions]
    return rng.random((studies, len(truths), policies)) < np.array(truths)[:, None]


def hit_p_values(family: Family, hits: np.ndarray, policies: int) -> np.ndarray:
    """Return [studies, proportions] the exact p-value after `policies` initial policies."""
    p = np.ones(hits.shape[:2])
    for index, (criterion, sample) in enumerate(family.proportions):
        table = p_by_count(sample, criterion, policies)
        p[:, index] = table[hits[:, index, : len(table) - 1].sum(-1)]
    return p


def t_p_values(values: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """Return the larger p-value of both t-tests of contrasts [studies, criteria, policies] of a support.

    Contrasts are in units of the margin; where a criterion claims no effect both margins are tested.
    """
    skew = skewness(values)
    above, below, inside = (
        np.maximum(t_p(contrasts), skewed_t_p(contrasts, side * skew))
        for contrasts, side in ((values - 1, 1), (values + 1, 1), (1 - values, -1))
    )
    return np.minimum(2 * np.where(absent, np.maximum(below, inside), above), 1.0)


def flip_p_value(values: np.ndarray, absent: bool) -> float:
    """Return twice the sign-flip p-value of a support of contrasts [policies]."""
    return max(map(doubled_flip_p, (values + 1, 1 - values) if absent else (values - 1,)))


def overall_p(p: np.ndarray, deciding: tuple[int, ...], policies: int) -> np.ndarray:
    """Return the error rate of all looks at which a look with p-value `p` just decides, by interpolation."""
    if len(deciding) < 2:
        return p
    nominal = np.array([Looks((0, *deciding)).nominal(float(alpha), policies) for alpha in GRID])
    return np.exp(np.interp(np.log(np.maximum(p, 1e-300)), np.log(nominal), np.log(GRID), right=0.0))


def summarize(
    family: Family, supported: np.ndarray, distribution: str, looks: Sequence[int], times: float
) -> dict[str, float | int | None]:
    """Return the rate of families with a false support, the power, and the power that is claimed."""
    absent = family.claims_absence
    is_true = ~absent if times > 1 else absent if times < 1 else np.zeros_like(absent)
    false = int(supported[:, ~is_true].any(1).sum())
    studies, count = supported.shape
    deciding = Looks(tuple(looks))
    alpha = deciding.nominal(ALPHA / count, looks[-1])
    skews = [0.0 if distribution == "normal" else float(skewness(own)) for own in family.residuals]
    powers = [
        power_of_mean(1.0, float(std), looks[-1], alpha, bool(none), skew)
        for std, none, skew in zip(family.spreads, family.absent, skews, strict=True)
    ] + [
        power_of_proportion(
            sample, each, 0.0 if each.direction == "zero" else 2 * each.margin, looks[-1], alpha
        )
        for each, sample in family.proportions
    ]
    claimed = np.array(powers)[is_true]
    return {
        "criteria": count,
        "studies": studies,
        "false_support": false / studies,
        "false_support_high": float(stats.beta.ppf(0.975, false + 1, studies - false)),
        "true_criteria": int(is_true.sum()),
        "power": float(supported[:, is_true].mean()) if is_true.any() else None,
        "claimed_power": float(claimed.mean()) if is_true.any() else None,
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
