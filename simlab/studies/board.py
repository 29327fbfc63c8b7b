"""The board: every claim with the verdict that stored results give, and where each number comes from."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from simlab.core.experiment import Experiment
from simlab.core.json_value import Json
from simlab.core.manifest import MANIFEST_NAME, Manifest
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies.loading import load_claims, load_experiments, load_papers
from simlab.studies.records import VERDICTS, Claim, Evidence, Kind
from simlab.studies.statistics import Interval, holm, p_value

UNTESTED = "not yet tested"
WORDS = (*VERDICTS, UNTESTED)
# The five papers come first; claims from other sources follow.
NUM_PAPERS = 5


@dataclass(frozen=True)
class Row:
    """One claim on the board.

    `effect`, `low`, `high` are None where nothing is decided; the interval is of confidence `level`.
    `adjusted_p` is the p-value of an effect of training, corrected for the number of such claims in its
    paper; None for the others. `also` lists what other experiments say ("experiment: verdict"). `minutes` is
    what the run took, `commit` where it ran, with a + if the tree was changed.
    """

    id: str
    paper: str
    statement: str
    where: str
    kind: Kind
    verdict: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    rule: str = ""
    note: str = ""
    level: float = 0.95
    adjusted_p: float | None = None
    also: tuple[str, ...] = ()
    experiment: str = ""
    commit: str = ""
    finished: str = ""
    minutes: float | None = None

    def as_dict(self) -> dict[str, Json]:
        """Return the row as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Board:
    """All claims in the order of the catalog, and what is wrong with stored results, one line each."""

    rows: list[Row]
    problems: list[str]


def board(folder: Path | None = None) -> Board:
    """Return the board that the results in `folder` give.

    `folder` holds one folder per experiment; by default it is that of the results that travel with the code.
    A result that its experiment cannot read decides nothing and is among the problems.
    """
    found, problems = evidence(folder)
    kinds = _kinds()
    rows = [_row(claim, _order_evidence(claim, found, kinds), kinds) for claim in load_claims().values()]
    return Board(_adjust_p_values(rows), problems)


def list_stored(folder: Path | None = None) -> list[tuple[Experiment, Manifest]]:
    """Return the experiments with a stored result, and its manifest, in the order of `EXPERIMENTS`."""
    return [(experiment, results.manifest) for experiment, results in _results(folder)]


def evidence(folder: Path | None = None) -> tuple[list[Evidence], list[str]]:
    """Return the evidence of every stored result, in the order of `EXPERIMENTS`, and problems."""
    found, problems = [], []
    for experiment, results in _results(folder):
        try:
            found += decide_claims(experiment, results)
        except ValueError as error:
            problems.append(f"{error}; run it again: simlab run {experiment.name}")
    return found, problems


def decide_claims(experiment: Experiment, results: Results) -> list[Evidence]:
    """Return the evidence of a finished run of `experiment`.

    Raises `ValueError` if it cannot read its tables or decides an unknown claim.
    """
    manifest = results.manifest
    try:
        collect = experiment.collect_evidence
        found = cast(Sequence[Evidence], collect(results) if collect else ())
    except (KeyError, FileNotFoundError, IndexError) as error:
        raise ValueError(f"{experiment.name} cannot decide from its tables: {error!r}") from error
    claims = load_claims()
    unknown = [each.claim for each in found if each.claim not in claims]
    if unknown:
        raise ValueError(f"{experiment.name} decides {', '.join(unknown)}, not a claim of the board")
    return [replace(each, experiment=experiment.name, manifest=manifest) for each in found]


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of claims by verdict, in the order of `WORDS`."""
    found = Counter(row.verdict for row in rows)
    return {word: found[word] for word in WORDS}


def summary(rows: Sequence[Row]) -> str:
    """Return the counts as the README shows them: a Markdown table, papers by verdict."""
    lines = ["| | " + " | ".join(WORDS) + " |", "|---|" + "---:|" * len(WORDS)]
    names = list(load_papers())
    papers, ours = names[:NUM_PAPERS], names[NUM_PAPERS:]
    groups = {paper: [paper] for paper in papers}
    groups |= {"the five papers": papers} | {name: [name] for name in ours}
    for label, members in groups.items():
        numbers = counts([row for row in rows if row.paper in members])
        lines.append(f"| {label} | " + " | ".join(map(str, numbers.values())) + " |")
    return "\n".join(lines)


def deciding(claim: str, folder: Path | None = None) -> Experiment:
    """Return the experiment behind a claim: the one that decides it, else the first that names it.

    Raises `ValueError` where no experiment does.
    """
    experiments = load_experiments()
    entry = load_claims()[claim]
    for each in _order_evidence(entry, evidence(folder)[0], _kinds()):
        return experiments[each.experiment]
    for experiment in experiments.values():
        if claim in experiment.claims:
            return experiment
    raise ValueError(f"no experiment decides {claim} yet: {entry.statement}")


def _kinds() -> dict[str, Kind]:
    """Return the kind of evidence of every experiment."""
    return {name: experiment.kind for name, experiment in load_experiments().items()}


def _results(folder: Path | None) -> list[tuple[Experiment, Results]]:
    found = []
    for name, experiment in load_experiments().items():
        place = committed_results(name) if folder is None else folder / name
        if (place / MANIFEST_NAME).is_file():
            found.append((experiment, Results(place)))
    return found


def _order_evidence(claim: Claim, found: Sequence[Evidence], kinds: Mapping[str, Kind]) -> list[Evidence]:
    """Return the evidence on a claim, the deciding piece first.

    Exact sums decide identities, all else measurements, runs dynamics. Inconclusive evidence yields to the
    rest, which keeps the order of `EXPERIMENTS`.
    """
    fitting = {
        "identity": lambda kind: kind == "identity",
        "measurement": lambda kind: kind != "identity",
        "dynamics": lambda kind: kind == "dynamics",
    }[claim.kind]

    def rank(each: Evidence) -> tuple[bool, bool]:
        return not fitting(kinds[each.experiment]), each.verdict == "inconclusive"

    return sorted((each for each in found if each.claim == claim.id), key=rank)


def _row(claim: Claim, found: Sequence[Evidence], kinds: Mapping[str, Kind]) -> Row:
    row = Row(claim.id, claim.paper, claim.statement, claim.reference, claim.kind, UNTESTED)
    if not found:
        return row
    first, *others = found
    verdict, note = first.verdict, first.note
    if claim.kind == "dynamics" and kinds[first.experiment] != "dynamics":
        verdict, note = "inconclusive", f"The part that needs no training: {verdict}. {note}"
    manifest = first.manifest
    return replace(
        row,
        verdict=verdict,
        effect=first.effect,
        low=first.low,
        high=first.high,
        unit=first.unit,
        rule=first.rule,
        note=note,
        level=first.level,
        also=tuple(f"{each.experiment}: {each.verdict}" for each in others),
        experiment=first.experiment,
        commit=(manifest["commit"] or "unknown")[:12] + ("+" if manifest["dirty"] else ""),
        finished=manifest["finished"],
        minutes=round(manifest["timings"]["total"] / 60, 2),
    )


def _adjust_p_values(rows: list[Row]) -> list[Row]:
    """Correct the p-values of a paper's claims about dynamics for their number."""
    corrected = {row.id: row for row in rows}
    for paper in load_papers():
        tested = [row for row in rows if row.paper == paper and row.kind == "dynamics"]
        p_values = {row.id: p_value(found, row.level) for row in tested if (found := _interval(row))}
        for claim, p in zip(p_values, holm(list(p_values.values())), strict=True):
            corrected[claim] = replace(corrected[claim], adjusted_p=float(p))
    return list(corrected.values())


def _interval(row: Row) -> Interval | None:
    if row.effect is None or row.low is None or row.high is None or row.low == row.high:
        return None
    return Interval(row.effect, row.low, row.high)
