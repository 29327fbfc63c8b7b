"""Runs in two stages: what the first decides is not run again.

Every start has one run at the first stage and one more at the second. The intervals of both stages together
err as often as one of 95% (O'Brien & Fleming 1979), and as nearly: a bootstrap over eight starts is short by
a point or two.
"""

from collections.abc import Callable, Collection, Sequence

from experiments.dynamics_study.earlier import begun, joined, lacking, same_arms
from experiments.dynamics_study.runs import Frames, Tables, collect, tabled
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results
from simlab.studies.estimands import Views
from simlab.studies.records import Claim, Evidence, Trial, arms_of, trials_of
from simlab.studies.sequential import stopping_levels
from simlab.studies.verdicts import judge

SEEDS = (0, 1)
"""The seed that each stage adds."""
LEVELS = tuple(map(float, stopping_levels(len(SEEDS))))
STARTS = 8
POWER = (
    f"Group-sequential: {STARTS} starts with one seed, then with two, paired, intervals over starts of "
    f"{LEVELS[0]:.2%} and {LEVELS[1]:.2%} (O'Brien & Fleming, 5% over both stages); the second stage is run "
    "for what the first leaves inconclusive. Parts and margins are those of a pilot, four runs per arm from "
    "other starts. "
)

Make = Callable[[Run, Sequence[str], int], Frames]
"""The runs of these arms with that seed."""


def together(arms: Sequence[str]) -> list[Sequence[str]]:
    """Return one part: these arms share what it takes to make them."""
    return [arms] if arms else []


def singly(arms: Sequence[str]) -> list[Sequence[str]]:
    """Return a part for each arm, so that who stops a stage keeps the arms that it has."""
    return [[arm] for arm in arms]


def staged(
    run: Run,
    arms: Sequence[str],
    undecided: Callable[[Tables], Sequence[str]],
    make: Make,
    parts: Callable[[Sequence[str]], Sequence[Sequence[str]]] = together,
    watched: Collection[str] = (),
) -> None:
    """Make a stage of `arms`, then the next of those that `undecided` returns; write the tables.

    What the result has that `run` goes on from is not made again, but for `watched` arms that were not
    there. Interrupted after the first stage it ends with the `parts` that it has, whose runs would be lost
    to the tables.
    """
    tables = begun(run, arms, watched)
    for stage, seed in enumerate(SEEDS, 1):
        if stage > 1 and (run.smoke or not (arms := undecided(tables))):
            break
        try:
            for part in parts(lacking(tables, arms, seed, STARTS)):
                tables = joined(tables, tabled(make(run, part, seed)))
        except KeyboardInterrupt:
            if stage == 1 and run.after is None:
                raise
            run.say(f"stopped in stage {stage} of {len(SEEDS)}: the tables hold what was made before")
            run.configure(stopped_in_stage=stage)
            break
    run.seeds(sorted(set(tables.table("runs")["seed"])))
    for name, table in tables.tables.items():
        run.table(name, table)


def whole(views: Views, arms: Sequence[str]) -> Views:
    """Return the runs up to the last stage that all of `arms` have been through."""
    made = [{seed for _, seed in views.arms[arm]} for arm in arms]
    return views.until(max(seed for seed in SEEDS if all(seed in seeds for seeds in made)))


def level_of(views: Views, arm: str) -> float:
    """Return the confidence level of the last stage that `arm` has runs of."""
    made = {seed for _, seed in views.arms[arm]}
    return LEVELS[max(stage for stage, seed in enumerate(SEEDS) if seed in made)]


def compute(
    run: Run,
    trials: Sequence[Trial],
    smoke: Sequence[str],
    make: Make = collect,
    watched: Collection[str] = (),
) -> None:
    """Make the stages that trials need, `watched` arms by `make`, or one of `smoke` in the smoke mode."""
    arms = smoke if run.smoke else arms_of(trials)
    staged(run, arms, lambda tables: still_open(tables, trials), make, watched=watched)


def still_open(tables: Tables, trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the arms of the trials that the first stage leaves inconclusive."""
    views = Views(tables).until(SEEDS[0])
    return arms_of([trial for trial in trials if _is_open(judge(views, trial, LEVELS[0]))])


def collect_evidence(results: Results | Tables, trials: Sequence[Trial]) -> list[Evidence]:
    """Return evidence of every trial whose arms are there and have what it measures: its last stage's."""
    views = Views(results)
    judged = [
        judge_stages(views, trial)
        for trial in trials
        if trial.criteria and set(arms_of([trial])) <= set(views.arms)
    ]
    return [each for each in judged if each is not None]


def judge_stages(views: Views, trial: Trial) -> Evidence | None:
    """Judge a trial at the first stage, and at the next while it is open and was run."""
    last: Evidence | None = None
    arms = arms_of([trial])
    for number, (seed, level) in enumerate(zip(SEEDS, LEVELS, strict=True), 1):
        made = views.until(seed).arms
        if any(seed not in {seed for _, seed in made[arm]} for arm in arms):
            break
        starts = min(len({start for start, _ in made[arm]}) for arm in arms)
        where = f"stage {number} of {len(SEEDS)}, {starts} starts"
        last = judge(views.until(seed), trial, level, where)
        if not _is_open(last):
            break
    return last


def _is_open(evidence: Evidence | None) -> bool:
    return evidence is None or evidence.verdict == "inconclusive"


def rule_text(trials: Sequence[Trial]) -> str:
    """Return what an experiment prints as its rule, with the runs that each claim may cost."""
    runs = STARTS * len(SEEDS)
    budgets = (
        f"{trial.text} Budget: {runs * len(arms_of([trial]))} runs." if trial.criteria else trial.text
        for trial in trials
    )
    return (
        f"{POWER}A claim is reproduced if all its parts are, opposite if any part is, has no effect if any "
        f"part has none, else is inconclusive. {' '.join(budgets)}"
    )


def training_experiment(
    name: str,
    question: str,
    claims: tuple[Claim, ...],
    *,
    minutes: float,
    figures: tuple[str, ...],
    smoke: Sequence[str],
    make: Make = collect,
    watched: Collection[str] = (),
    also: Sequence[Trial] = (),
    measure: Callable[[Run], None] | None = None,
    judge: Callable[[Results], list[Evidence]] | None = None,
    decide: Callable[[Results], list[Evidence]] | None = None,
) -> Experiment:
    """Return the experiment that runs the trials called `name` among `claims`.

    `smoke` are the arms of the smoke mode, `also` trials that no claim holds, `measure` writes further
    tables, `judge` decides what these tables hold, and `decide` replaces the whole decision.
    """
    trials = trials_of(claims, name)

    def run(run: Run) -> None:
        compute(run, (*trials, *also), smoke, make, watched)
        if measure is not None:
            measure(run)

    def decide_trials(results: Results) -> list[Evidence]:
        return [*collect_evidence(results, trials), *(judge(results) if judge else ())]

    return Experiment(
        name=name,
        question=question,
        decision_rule=rule_text(trials),
        run=run,
        minutes=minutes,
        claims=tuple(trial.claim for trial in trials),
        figures=figures,
        collect_evidence=decide or decide_trials,
        goes_on=same_arms,
    )
