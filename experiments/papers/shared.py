"""Construct claims: criteria, margins with reasons, and premises that several papers share.

A margin is the smallest effect of interest. No margin depends on a stored estimate. The margin of a recovered
fraction is a fifth, that of the growth of the mismatch a factor of 1.5, and that of a reward the difference
that 24 initial policies can resolve.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import log

from experiments.arms import acrl
from experiments.arms.settings import on_chains, with_moe
from experiments.regimes import E4M3_CHAINS, E4M3_MOE_CHAINS
from simlab.studies.arms import Arm
from simlab.studies.contrasts import CollapseRate, Compares, Share, ShareDifference, minus
from simlab.studies.estimands import REWARD, Estimand, diagnostic_late
from simlab.studies.records import (
    COLLAPSE,
    EXACT_SUMS,
    NO_TRAINING,
    Claim,
    Criterion,
    Direction,
    Kind,
    Regime,
    Role,
    Trial,
    manipulation,
)

FIFTH, HALF = 0.2, 0.5
FACTOR, QUARTER_MORE = log(1.5), log(1.25)
LOSS, REWARDS = 0.1, 0.05

LEARNED = diagnostic_late("held_out_train", "reward on held-out prompts under the training engine")
"""Noise lowers the reward of the inference engine whether or not it harms training."""

FIFTH_OF_LOSS = "a fifth of the loss"
MOST_OF_LOSS = "prevents: at least half of the loss is recovered"
GROWS = "a factor of 1.5 in growth"
CHANGES = "a quarter, as a difference of logarithms"
TEN_POINTS = "0.1 of the largest reward"
FIVE_POINTS = "0.05 of the largest reward"
TWO_POINTS = "0.02 of the largest reward; policies without mismatch differ little between arms"
FIVE_CENTINATS = "0.05 nats per token"
FIVE_PERCENT_OF_RHO = "5% of the IS ratio"
QUARTER_OF_RUNS = "a run collapses as a rule only if more than a quarter do; `no effect` allows a quarter"
WEAK_RANK = "a smaller rank correlation is weak"
ONE_CHUNK = "one chunk of 10 steps"


def make_claim(paper: str, kind: Kind, id: str, statement: str, reference: str, *trials: Trial) -> Claim:
    """Return a claim of a paper."""
    return Claim(id, paper, statement, reference, kind, trials)


def make_identity(paper: str, id: str, statement: str, reference: str, *checks: Criterion | Trial) -> Claim:
    """Return a claim that exact checks decide; the experiment `theory` computes those outside a trial."""
    trials = [each for each in checks if isinstance(each, Trial)]
    if exact := tuple(each for each in checks if isinstance(each, Criterion)):
        trials.append(exact_trial(*exact))
    return make_claim(paper, "identity", id, statement, reference, *trials)


def exact_trial(first: Criterion, *others: Criterion, note: str = "") -> Trial:
    """Return the trial of `theory`; its first check states the claim as printed and is primary."""
    return Trial("theory", (replace(first, role="primary"), *others), EXACT_SUMS, note)


def trial(
    experiment: str,
    *criteria: Criterion,
    regime: Regime = NO_TRAINING,
    note: str = "",
    is_exploratory: bool = False,
    rule_sha256: str = "",
) -> Trial:
    """Return how an experiment tests a claim in a regime."""
    return Trial(experiment, criteria, regime, note, is_exploratory, rule_sha256)


def claim_makers(paper: str) -> tuple[Callable[..., Claim], ...]:
    """Return the constructors of the claims of a paper: dynamics, measurement, identity."""
    kinds: tuple[Kind, ...] = ("dynamics", "measurement")
    return *(partial(make_claim, paper, kind) for kind in kinds), partial(make_identity, paper)


def find_claims(claims: Sequence[Claim], *ids: str) -> tuple[Claim, ...]:
    """Return the claims of these ids."""
    by_id = {claim.id: claim for claim in claims}
    return tuple(by_id[id] for id in ids)


def recovers(
    remedy: Arm,
    untreated: Arm,
    control: Arm,
    *,
    role: Role = "secondary",
    margin: float = FIFTH,
    direction: Direction = "positive",
    reward: Estimand = REWARD,
) -> Criterion:
    """Return that a remedy recovers a share of the loss in late reward."""
    because = MOST_OF_LOSS if margin == HALF else FIFTH_OF_LOSS
    return Criterion(reward, Share(remedy, untreated, control), direction, margin, because, role)


def recovers_more(
    remedy: Arm,
    other: Arm,
    untreated: Arm,
    control: Arm,
    *,
    role: Role = "secondary",
    margin: float = FIFTH,
    direction: Direction = "positive",
    because: str = FIFTH_OF_LOSS,
    reward: Estimand = REWARD,
) -> Criterion:
    """Return that a remedy recovers a larger share of the loss than another."""
    contrast: Compares = ShareDifference(remedy, other, untreated, control)
    return Criterion(reward, contrast, direction, margin, because, role)


def collapses(
    arm: Arm, control: Arm, *, role: Role = "secondary", direction: Direction = "positive"
) -> Criterion:
    """Return that an arm collapses from more than a quarter of the initial policies."""
    return Criterion(COLLAPSE, CollapseRate(arm, control), direction, 0.25, QUARTER_OF_RUNS, role)


def loses(untreated: Arm, control: Arm, reward: Estimand = REWARD) -> Criterion:
    """Return the premise that the untreated arm loses reward against the control."""
    because = "0.1 of the largest reward: a fraction of a smaller loss cannot be measured"
    return manipulation(reward, minus(untreated, control), "negative", LOSS, because=because)


def in_e4m3(
    build: Callable[..., Sequence[Criterion]], *, note: str = "", is_exploratory: bool = False
) -> tuple[Trial, ...]:
    """Return the trials of a claim with E4M3 rollouts of three mantissa bits, dense and MoE.

    `build` takes no correction, control, token TIS, sequence MIS and ACRL. The rule is exploratory if it is
    younger than the runs.
    """
    treatments = (acrl.E4M3, acrl.E4M3_BF16, acrl.E4M3_TIS, acrl.E4M3_SEQ_MIS, acrl.E4M3_ACRL)
    regimes = (
        ("e4m3_dynamics", on_chains, E4M3_CHAINS),
        ("e4m3_moe_dynamics", with_moe, E4M3_MOE_CHAINS),
    )
    return tuple(
        trial(name, *build(*map(place, treatments)), regime=regime, note=note, is_exploratory=is_exploratory)
        for name, place, regime in regimes
    )
