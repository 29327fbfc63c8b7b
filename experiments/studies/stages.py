"""The group-sequential design of training experiments: blocks of initial policies.

A study is analyzed after 8, 16 and 24 initial policies. The first interim analysis only stops arms for
futility. The other two together have an error rate of 5% (O'Brien & Fleming 1979). Each block runs the arms
of the trials that are still inconclusive and have a chance of a verdict.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count

import jax
import pandas as pd

from experiments.regimes import BASE
from experiments.studies.acrl_variants import run_variants
from experiments.studies.matched_noise import run_matched
from experiments.studies.observed_runs import observe_arms
from experiments.studies.repeated_runs import run_forks
from experiments.studies.resume import check_arms, load_resumed, merge_tables, missing_arms
from experiments.studies.runs import BLOCK, Frames, Tables, build_tables, run_arms
from simlab.core.backend import require_one_thread
from simlab.core.results import Results
from simlab.studies.arms import Arm
from simlab.studies.design import Design
from simlab.studies.estimands import Views
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.futility import predictive_power
from simlab.studies.power import count_sampled
from simlab.studies.records import Claim, Measured, Trial, arms_of, trials_of
from simlab.studies.registration import LOOKS, register
from simlab.studies.sequential import Looks
from simlab.studies.verdicts import ALPHA, criterion_verdict, measure, measure_trials

MIN_PREDICTIVE_POWER = 0.1
"""Chance of a verdict at the last analysis below which a trial stops."""
DESIGN = (
    f"Group-sequential: {', '.join(map(str, LOOKS))} initial policies with one seed each, paired. The first "
    f"analysis stops trials with a chance of a verdict below {MIN_PREDICTIVE_POWER:.0%}. The others together "
    "have an error rate of 5% (O'Brien & Fleming). Primary criteria are corrected by Holm's method over the "
    "paper. "
)

Make = Callable[[ExperimentContext, Sequence[Arm], int | None], Frames]
"""Run these arms from that block of initial policies, or from all."""
Part = tuple[int, Sequence[Arm]]
"""A block of initial policies and the arms that run from it."""
OTHERS: dict[str, tuple[Callable[[Arm], object], Make]] = {
    "forks": (lambda arm: arm.forked_from, run_forks),
    "matched noise": (lambda arm: arm.noise_follows, run_matched),
    "variants": (lambda arm: arm.own_objective, run_variants),
}
"""What marks arms that a sweep cannot run, and what runs them, by the name of the phase in the manifest."""


def make_block(
    run: ExperimentContext,
    arms: Sequence[Arm],
    block: int | None,
    *,
    baseline: Arm,
    diagnostics: Mapping[Arm, Sequence[str]],
) -> Frames:
    """Run `arms`: first those that a sweep can run, with their diagnostics, then the others.

    Smoke runs of a sweep compute no diagnostics. If a sweep can run none of the arms, the baseline is run:
    the rows of the others are added to its tables.
    """
    swept = [arm for arm in arms if arm.is_swept] or [baseline]
    observed: Frames = {}
    if diagnostics:
        with run.phase("diagnostics"):
            observed["diagnostics"] = observe_arms(run, {} if run.smoke else diagnostics, swept, block)
    frames = run_arms(run, swept, block) | observed
    for phase, (is_marked, run_others) in OTHERS.items():
        if others := [arm for arm in arms if is_marked(arm)]:
            with run.phase(phase):
                more = run_others(run, others, block)
            frames |= {name: pd.concat([frames[name], more[name]], ignore_index=True) for name in more}
    return frames


def with_policies(arms: Sequence[Arm], block: int) -> list[Arm]:
    """Return those of `arms` that have initial policies in this block."""
    return [arm for arm in arms if len(arm.initial_policies) > BLOCK * block]


def run_trials(
    run: ExperimentContext,
    trials: Sequence[Trial],
    smoke: Sequence[Arm],
    make: Make,
    diagnosed: Collection[Arm] = (),
    family: int | None = None,
) -> None:
    """Run the first block for the arms of `trials`, each later one for those still open; write the tables.

    `family` counts the criteria that are tested together, by default those of `trials`.
    In smoke mode run one block of the arms `smoke`. Runs only what the result that `run` resumes from lacks;
    `diagnosed` arms without diagnostics are run again.
    """
    require_one_thread()  # before the backend is asked for, which starts it
    arms, stops = smoke if run.smoke else arms_of(trials), run.stops_for_futility
    tables = load_resumed(run, arms, diagnosed)
    unfinished = missing_arms(tables, [arm for arm in arms if arm.is_swept], len(LOOKS) - 1)
    if jax.default_backend() != "cpu" and not run.smoke and unfinished:
        # A GPU computes all blocks in little more than the time of one; later blocks come from the cache.
        make(run, unfinished, None)

    def choose(tables: Tables, block: int) -> Part | None:
        if block == 0:
            return block, arms
        if run.smoke or block == len(LOOKS):
            return None
        undecided = with_policies(open_arms(tables, trials, family, stops), block)
        return (block, undecided) if undecided else None

    run_parts(run, tables, choose, make)


def run_parts(
    run: ExperimentContext, tables: Tables, choose: Callable[[Tables, int], Part | None], make: Make
) -> None:
    """Run one part after another and write the tables; an arm whose runs `tables` has is not run again.

    If interrupted after the first part, write the tables of the finished parts.

    Args:
        run: of the experiment.
        tables: the runs of the result that `run` resumes from.
        choose: returns the next part from the tables so far and the number of parts before, None at the end.
        make: runs arms from a block.
    """
    require_one_thread()
    for number in count():
        if (part := choose(tables, number)) is None:
            break
        block, arms = part
        try:
            if missing := missing_arms(tables, arms, block):
                tables = merge_tables(tables, build_tables(make(run, missing, block)))
        except KeyboardInterrupt:
            if number == 0 and run.resume_from is None:
                raise
            run.report(f"interrupted in block {block + 1} of {len(LOOKS)}: the tables hold the finished runs")
            run.configure(stopped_in_block=block + 1)
            break
    run.seeds(sorted(set(tables.table("runs")["seed"])))
    for name, table in tables.tables.items():
        run.table(name, table)


def open_arms(
    tables: Tables, trials: Sequence[Trial], family: int | None = None, stops_for_futility: bool = True
) -> tuple[Arm, ...]:
    """Return the arms of the undecided trials, without hopeless ones if `stops_for_futility`."""
    views = Views(tables)
    measured = [measure(views, trial) for trial in trials]
    family = family or count_sampled(trials)
    return arms_of([each.trial for each in measured if is_open(each, family, stops_for_futility)])


def is_open(measured: Measured, family: int, stops_for_futility: bool) -> bool:
    """Return whether a trial should get another block of initial policies.

    It is tested at the Bonferroni level of `family`, with which Holm's method begins. As long as a premise is
    inconclusive the claim is, too, so the trial goes on. The first analysis decides nothing, so a trial that
    goes on in spite of its small chance keeps its error rate.
    """
    sample, criterion, looks = measured.primary, measured.trial.primary, Looks(LOOKS)
    if sample is None or not criterion.is_sampled:
        return False
    level = ALPHA / max(family, 1)
    ends = sample.interval(looks.nominal(level, sample.num_policies))
    decided = criterion_verdict(ends, criterion.direction, criterion.margin) != "inconclusive"
    if looks.decides(sample.num_policies):
        return not (decided and has_decided_premises(measured))
    if not stops_for_futility:
        return True
    return (
        predictive_power(sample, criterion, LOOKS[-1], looks.nominal(level, LOOKS[-1]))
        >= MIN_PREDICTIVE_POWER
    )


def has_decided_premises(measured: Measured) -> bool:
    """Return whether no manipulation check of a trial is inconclusive at 95%."""
    return all(
        criterion_verdict(sample.interval(ALPHA), criterion.direction, criterion.margin) != "inconclusive"
        for criterion, sample in zip(measured.trial.criteria, measured.samples, strict=True)
        if criterion.role == "manipulation" and sample is not None
    )


def write_rule(trials: Sequence[Trial]) -> str:
    """Return the rule that an experiment prints, with the budget of runs of each claim."""
    budgets = (f"{trial.text} Budget: {LOOKS[-1] * len(arms_of([trial]))} runs." for trial in trials)
    return DESIGN + " ".join(budgets)


def training_experiment(
    name: str,
    question: str,
    claims: Sequence[Claim],
    *,
    minutes: float,
    baseline: Arm,
    smoke: Sequence[Arm] = (),
    diagnostics: Mapping[Arm, Sequence[str]] = {},
    shared_diagnostics: Sequence[str] = ("validation",),
    also: Sequence[Trial] = (),
    write_tables: Callable[[ExperimentContext], None] = lambda _: None,
    collect_evidence: Callable[[Results], list[Measured]] | None = None,
) -> Experiment:
    """Return the experiment that runs the trials called `name` among `claims`.

    Args:
        name: of the experiment.
        question: that it answers.
        claims: those of the paper.
        minutes: of a full run on two cores.
        baseline: the untreated arm, with which the others are compared.
        smoke: the arms of smoke mode, besides the baseline.
        diagnostics: names of the diagnostics between steps, by arm.
        shared_diagnostics: names of the diagnostics of every arm, added to its own; by default `validation`.
        also: trials that no claim holds.
        write_tables: writes further tables after the runs.
        collect_evidence: returns the evidence of a finished run, by default that of the trials.
    """
    trials = trials_of(claims, name)
    arms = dict.fromkeys((baseline, *arms_of((*trials, *also))))
    design = Design(BASE, {arm.id: arm for arm in arms}, baseline.id)
    observed = {arm: (*diagnostics.get(arm, ()), *shared_diagnostics) for arm in arms}
    observed = {arm: names for arm, names in observed.items() if names}
    make = partial(make_block, baseline=baseline, diagnostics=observed)

    def run(run: ExperimentContext) -> None:
        # The board corrects over the paper; a smaller family would stop a study that the board cannot decide.
        family = count_sampled([trial for claim in claims for trial in claim.trials])
        run_trials(run, (*trials, *also), (baseline, *smoke), make, observed, family)
        write_tables(run)

    return Experiment(
        name=name,
        question=question,
        decision_rule=write_rule(trials),
        run=run,
        minutes=minutes,
        claims=tuple(dict.fromkeys(trial.claim for trial in trials)),
        collect_evidence=collect_evidence or partial(measure_trials, trials=trials),
        check_resume=partial(check_arms, arms=design.arms),
        design=design,
        registered=register(claims, name),
        is_sequential=True,
        on_one_thread=True,
    )
