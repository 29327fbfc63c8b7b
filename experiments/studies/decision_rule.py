"""Simulate the decision rule: how often a family of criteria is called supported, wrongly or correctly.

Each synthetic study draws a contrast, or a pair of gain and loss, for every primary criterion and initial
policy. The draws are stored values of that criterion, with replacement, or normal values of the same mean and
covariance. They are shifted to no effect, the margin, or twice the margin. The tests are those of the claims
board: `simlab.studies.samples`, Holm's method over the family, and analyses at 16 and 24 initial policies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy import stats

from simlab.studies.board import measurements
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.loading import load_claims, load_papers
from simlab.studies.power import (
    p_by_count,
    power_of_proportion,
    ratio_power,
    shift_ratio,
    supported_ratio_p,
    true_proportion,
)
from simlab.studies.records import Criterion
from simlab.studies.registration import LOOKS
from simlab.studies.samples import Proportion, RatioOfMeans
from simlab.studies.sequential import Looks
from simlab.studies.statistics import holm
from simlab.studies.verdicts import ALPHA, p_supported

STUDIES, SMOKE_STUDIES = 16_000, 50
TRUTHS = {"no effect": 0.0, "at the margin": 1.0, "twice the margin": 2.0}
DESIGNS = {"8 policies, one look": (8,), "16 and 24 policies": LOOKS}
DISTRIBUTIONS = ("normal", "stored residuals")
GRID = np.geomspace(1e-9, 0.4, 80)
MANY = 4000
"""Normal pairs that stand for their distribution."""


@dataclass(frozen=True)
class Family:
    """The primary criteria of a paper, each with its stored sample.

    Args:
        paper: its name.
        means: the criteria on means and shares.
        proportions: the criteria on proportions.
    """

    paper: str
    means: tuple[tuple[Criterion, RatioOfMeans], ...] = ()
    proportions: tuple[tuple[Criterion, Proportion], ...] = ()

    @property
    def claims_absence(self) -> np.ndarray:
        """Return for each criterion whether it claims no effect, those on proportions last."""
        return np.array([each.direction == "zero" for each, _ in (*self.means, *self.proportions)], bool)


def load_families() -> list[Family]:
    """Return the families of registered criteria with stored results, without contrasts that do not vary."""
    claims, measured = load_claims(), measurements()[0]
    families = []
    for paper in load_papers():
        sampled = [
            (each.trial.primary, each.primary)
            for each in measured
            if claims[each.trial.claim].paper == paper
            and each.trial.primary.contrast
            and not each.trial.is_exploratory
        ]
        means = tuple(
            (each, known) for each, known in sampled if isinstance(known, RatioOfMeans) and _varies(known)
        )
        if len(means) > 1:
            proportions = tuple((each, known) for each, known in sampled if isinstance(known, Proportion))
            families.append(Family(paper, means, proportions))
    return families


def _varies(sample: RatioOfMeans) -> bool:
    return float(sample.contrasts(sample.estimate).std()) > 0


def run(run: ExperimentContext) -> None:
    """Write the error rates and the power per paper."""
    studies = SMOKE_STUDIES if run.smoke else STUDIES
    run.configure(studies=studies, alpha=ALPHA, looks=list(LOOKS))
    rng = np.random.default_rng(*run.seeds([0]))
    families = load_families()
    rows = []
    for family in run.track(families[:1] if run.smoke else families, "families", len(families)):
        for distribution, design, truth in product(DISTRIBUTIONS, DESIGNS, TRUTHS):
            looks, times = DESIGNS[design], TRUTHS[truth]
            supported = simulate(rng, family, distribution, looks, times, studies)
            case = {"paper": family.paper, "distribution": distribution, "design": design, "truth": truth}
            rows.append(case | summarize(family, supported, distribution, looks, times))
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
    size = (studies, looks[-1])
    pairs = [draw_pairs(rng, each, sample, distribution, times, size) for each, sample in family.means]
    hits = draw_hits(rng, family, times, *size)
    deciding = Looks(tuple(looks)).deciding
    p = np.ones((studies, len(family.claims_absence)))
    stopped = np.zeros(p.shape, bool)
    for policies in deciding:
        seen = [(above[:, :policies], below[:, :policies]) for above, below in pairs]
        by_t = [
            supported_ratio_p(*pair, each.direction, each.margin)
            for pair, (each, _) in zip(seen, family.means, strict=True)
        ]
        now = np.column_stack([*by_t, hit_p_values(family, hits, policies)])
        # Sign flips only raise p-values: what the t-tests do not support needs none.
        open_now = ~stopped & (holm(np.where(stopped, p, overall_p(now, deciding, policies))) <= ALPHA)
        for study, index in zip(*np.nonzero(open_now[:, : len(pairs)]), strict=True):
            above, below = seen[index]
            now[study, index] = p_supported(RatioOfMeans(above[study], below[study]), family.means[index][0])
        p = np.where(stopped, p, overall_p(now, deciding, policies))
        stopped |= holm(p) <= ALPHA
    return stopped


def draw_pairs(
    rng: np.random.Generator,
    criterion: Criterion,
    sample: RatioOfMeans,
    distribution: str,
    times: float,
    size: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Return numerators and denominators [*size]; their ratio is `times` the margin, as claimed."""
    sign = -1 if criterion.direction == "negative" else 1
    above, below = shift_ratio(sample, sign * times * criterion.margin)
    if distribution == "normal":
        drawn = rng.multivariate_normal((above.mean(), below.mean()), np.cov(above, below), size)
        return drawn[..., 0], drawn[..., 1]
    chosen = rng.integers(sample.num_policies, size=size)
    return above[chosen], below[chosen]


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


def overall_p(p: np.ndarray, deciding: tuple[int, ...], policies: int) -> np.ndarray:
    """Return the error rate of all analyses at which one with p-value `p` just decides, by interpolation."""
    if len(deciding) < 2:
        return p
    nominal = np.array([Looks((0, *deciding)).nominal(float(alpha), policies) for alpha in GRID])
    return np.exp(np.interp(np.log(np.maximum(p, 1e-300)), np.log(nominal), np.log(GRID), right=0.0))


def summarize(
    family: Family, supported: np.ndarray, distribution: str, looks: Sequence[int], times: float
) -> dict[str, float | int | None]:
    """Return the rate of families with a false support, the power, and the power that is claimed."""
    is_true = list_true(family, times)
    false = supported[:, ~is_true]
    studies, count = supported.shape
    deciding = Looks(tuple(looks))
    alpha = deciding.nominal(ALPHA / count, looks[-1])
    powers = [
        ratio_power(as_drawn(each, sample, distribution), each, looks[-1], alpha)
        for each, sample in family.means
    ]
    for each, sample in family.proportions:
        effect = 0.0 if each.direction == "zero" else 2 * each.margin
        powers.append(power_of_proportion(sample, each, effect, looks[-1], alpha))
    claimed = np.array(powers)[is_true]
    return {
        "criteria": count,
        "studies": studies,
        "false_support": false.any(1).mean(),
        "false_support_high": highest_rate(false),
        "true_criteria": int(is_true.sum()),
        "power": float(supported[:, is_true].mean()) if is_true.any() else None,
        "claimed_power": float(claimed.mean()) if is_true.any() else None,
    }


def list_true(family: Family, times: float) -> np.ndarray:
    """Return for each criterion whether its claim is true at `times` the margin."""
    absent = family.claims_absence
    return ~absent if times > 1 else absent if times < 1 else np.zeros_like(absent)


def highest_rate(false: np.ndarray) -> float:
    """Return the upper 97.5% limit of the rate of studies [studies, criteria] with a false support."""
    studies, found = len(false), int(false.any(1).sum())
    return float(stats.beta.ppf(0.975, found + 1, studies - found))


def as_drawn(criterion: Criterion, sample: RatioOfMeans, distribution: str) -> RatioOfMeans:
    """Return the sample, or many normal pairs of its mean and covariance."""
    if distribution != "normal":
        return sample
    rng = np.random.default_rng(0)
    above, below = draw_pairs(rng, criterion, sample, distribution, 2.0, (1, MANY))
    return RatioOfMeans(above[0], None if sample.denominator is None else below[0])


EXPERIMENT = Experiment(
    name="decision_rule",
    question="How often does the decision rule err, and how often does it find what is there?",
    decision_rule=(
        "A false support in at most 5% of the families of synthetic studies, with no effect and at the "
        "margin; power at least as claimed for the last analysis at the Bonferroni level."
    ),
    run=run,
    minutes=7.0,
    kind="measurement",
)
