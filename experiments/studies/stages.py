"""The group-sequential design of training experiments: two stages, the second for inconclusive claims.

Each initial policy has one run in the first stage and one more in the second. Over both stages the intervals
have the error rate of one interval of 95% (O'Brien & Fleming 1979), up to the error of the bootstrap: over
eight initial policies its coverage is a point or two too low.
"""

from collections.abc import Callable, Collection, Sequence

from experiments.arms import ALL_ARMS
from experiments.regimes import BASE
from experiments.studies.resume import check_arms, load_resumed, merge_tables, missing_arms
from experiments.studies.runs import Frames, Tables, build_tables, run_arms
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results
from simlab.studies.design import Design
from simlab.studies.estimands import Views
from simlab.studies.records import Claim, Evidence, Trial, arms_of, trials_of
from simlab.studies.sequential import stopping_levels
from simlab.studies.verdicts import judge

SEEDS = (0, 1)
"""The seed that each stage adds."""
LEVELS = tuple(map(float, stopping_levels(len(SEEDS))))
POLICIES = 8
POWER = (
    f"Group-sequential: {POLICIES} initial policies with one seed, then with two, paired, intervals over "
    f"initial policies of {LEVELS[0]:.2%} and {LEVELS[1]:.2%} (O'Brien & Fleming, 5% over both stages); the "
    "second stage runs the arms of inconclusive claims. Criteria and margins are those of a pilot, four runs "
    "per arm from other initial policies. "
)

Make = Callable[[Run, Sequence[str], int], Frames]
"""Run these arms with that seed."""


def as_one_part(arms: Sequence[str]) -> list[Sequence[str]]:
    """Return one part: the arms share their compiled functions."""
    return [arms] if arms else []


def one_part_per_arm(arms: Sequence[str]) -> list[Sequence[str]]:
    """Return a part per arm: an interrupted stage keeps its finished arms."""
    return [[arm] for arm in arms]


def run_stages(
    run: Run,
    arms: Sequence[str],
    undecided: Callable[[Tables], Sequence[str]],
    make: Make,
    parts: Callable[[Sequence[str]], Sequence[Sequence[str]]] = as_one_part,
    diagnosed: Collection[str] = (),
) -> None:
    """Run stage 1 for `arms`, run stage 2 for those that `undecided` returns, write the tables.

    Runs only what the result that `run` resumes from lacks; `diagnosed` arms without diagnostics are run
    again. If interrupted after stage 1, write the tables of the finished `parts`.
    """
    tables = load_resumed(run, arms, diagnosed)
    for stage, seed in enumerate(SEEDS, 1):
        if stage > 1 and (run.smoke or not (arms := undecided(tables))):
            break
        try:
            for part in parts(missing_arms(tables, arms, seed, POLICIES)):
                tables = merge_tables(tables, build_tables(make(run, part, seed)))
        except KeyboardInterrupt:
            if stage == 1 and run.resume_from is None:
                raise
            run.report(f"interrupted in stage {stage} of {len(SEEDS)}: the tables hold the finished runs")
            run.configure(stopped_in_stage=stage)
            break
    run.seeds(sorted(set(tables.table("runs")["seed"])))
    for name, table in tables.tables.items():
        run.table(name, table)


def common_stage(views: Views, arms: Sequence[str]) -> Views:
    """Return the runs up to the last stage that all of `arms` have completed."""
    made = [{seed for _, seed in views.arms[arm]} for arm in arms]
    return views.until(max(seed for seed in SEEDS if all(seed in seeds for seeds in made)))


def confidence_level(views: Views, arm: str) -> float:
    """Return the confidence level of the last stage that `arm` has runs of."""
    made = {seed for _, seed in views.arms[arm]}
    return LEVELS[max(stage for stage, seed in enumerate(SEEDS) if seed in made)]


def run_trials(
    run: Run,
    trials: Sequence[Trial],
    smoke: Sequence[str],
    make: Make = run_arms,
    diagnosed: Collection[str] = (),
) -> None:
    """Run the stages that `trials` need by `make`, or one stage of the arms `smoke` in smoke mode."""
    arms = smoke if run.smoke else arms_of(trials)
    run_stages(run, arms, lambda tables: open_arms(tables, trials), make, diagnosed=diagnosed)


def open_arms(tables: Tables, trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the arms of the trials that the first stage leaves inconclusive."""
    views = Views(tables).until(SEEDS[0])
    return arms_of([trial for trial in trials if _is_open(judge(views, trial, LEVELS[0]))])


def collect_evidence(results: Results | Tables, trials: Sequence[Trial]) -> list[Evidence]:
    """Return the evidence, at its last stage, of each trial whose arms have been run."""
    views = Views(results)
    judged = [
        judge_stages(views, trial)
        for trial in trials
        if trial.criteria and set(arms_of([trial])) <= set(views.arms)
    ]
    return [each for each in judged if each is not None]


def judge_stages(views: Views, trial: Trial) -> Evidence | None:
    """Judge a trial at the first stage, and at the next if it was inconclusive and run."""
    last: Evidence | None = None
    arms = arms_of([trial])
    for number, (seed, level) in enumerate(zip(SEEDS, LEVELS, strict=True), 1):
        made = views.until(seed).arms
        if any(seed not in {seed for _, seed in made[arm]} for arm in arms):
            break
        policies = min(len({policy for policy, _ in made[arm]}) for arm in arms)
        where = f"stage {number} of {len(SEEDS)}, {policies} initial policies"
        last = judge(views.until(seed), trial, level, where)
        if not _is_open(last):
            break
    return last


def _is_open(evidence: Evidence | None) -> bool:
    return evidence is None or evidence.verdict == "inconclusive"


def write_rule(trials: Sequence[Trial]) -> str:
    """Return the rule that an experiment prints, with the budget of runs of each claim."""
    runs = POLICIES * len(SEEDS)
    budgets = (
        f"{trial.text} Budget: {runs * len(arms_of([trial]))} runs." if trial.criteria else trial.text
        for trial in trials
    )
    return (
        f"{POWER}A claim is reproduced if all its criteria are, opposite if any criterion is, has no effect "
        f"if any criterion has none, else is inconclusive. {' '.join(budgets)}"
    )


def training_experiment(
    name: str,
    question: str,
    claims: tuple[Claim, ...],
    *,
    minutes: float,
    figures: tuple[str, ...],
    baseline: str,
    smoke: Sequence[str] = (),
    make: Make = run_arms,
    diagnosed: Collection[str] = (),
    also: Sequence[Trial] = (),
    measure: Callable[[Run], None] | None = None,
    judge: Callable[[Results], list[Evidence]] | None = None,
    decide: Callable[[Results], list[Evidence]] | None = None,
) -> Experiment:
    """Return the experiment that runs the trials called `name` among `claims`.

    Args:
        name: of the experiment.
        question: that it answers.
        claims: those of the paper.
        minutes: of a full run on two cores.
        figures: that show it.
        baseline: the untreated arm, with which the others are compared.
        smoke: the arms of smoke mode, besides the baseline.
        make: runs arms with a seed.
        diagnosed: arms with diagnostics between steps.
        also: trials that no claim holds.
        measure: writes further tables.
        judge: decides what these tables hold.
        decide: replaces the complete decision.
    """
    trials = trials_of(claims, name)
    arms = dict.fromkeys((baseline, *arms_of((*trials, *also))))
    design = Design(BASE, {arm: ALL_ARMS[arm] for arm in arms}, baseline, SEEDS)

    def run(run: Run) -> None:
        run_trials(run, (*trials, *also), (baseline, *smoke), make, diagnosed)
        if measure is not None:
            measure(run)

    def decide_trials(results: Results) -> list[Evidence]:
        return [*collect_evidence(results, trials), *(judge(results) if judge else ())]

    return Experiment(
        name=name,
        question=question,
        decision_rule=write_rule(trials),
        run=run,
        minutes=minutes,
        claims=tuple(trial.claim for trial in trials),
        figures=figures,
        collect_evidence=decide or decide_trials,
        check_resume=check_arms,
        design=design,
    )
