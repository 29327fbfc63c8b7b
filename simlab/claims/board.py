"""The board: every claim with the verdict that stored results give, and where each number comes from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from simlab.claims.catalog import CLAIMS, OURS, PAPERS, Kind, paper_of
from simlab.claims.finding import VERDICTS, Finding
from simlab.claims.statistics import Interval, holm, p_value
from simlab.core.experiment import Experiment
from simlab.core.manifest import MANIFEST_NAME
from simlab.core.paths import committed_results, open_shop
from simlab.core.results import Results

UNTESTED = "not yet tested"
WORDS = (*VERDICTS, UNTESTED)
STATIC = ("softmax", "theory", "theory_survival", "theory_corrections", "which_card")
"""Experiments without training; alone they leave a claim about dynamics inconclusive."""
EXACT = ("theory", "theory_survival", "theory_corrections")
"""Those without sampling error, in the order in which they decide identities."""


@dataclass(frozen=True)
class Evidence:
    """A finding, the experiment that made it, and the manifest of its stored result."""

    experiment: str
    finding: Finding
    manifest: dict[str, Any]


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

    def as_dict(self) -> dict[str, Any]:
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
    return Board(_adjusted([_row(claim, _ordered(claim, found)) for claim in CLAIMS]), problems)


def stored(folder: Path | None = None) -> list[tuple[Experiment, dict[str, Any]]]:
    """Return the experiments with a stored result, and its manifest, in the order of `EXPERIMENTS`."""
    return [(experiment, results.manifest) for experiment, results in _results(folder)]


def evidence(folder: Path | None = None) -> tuple[list[Evidence], list[str]]:
    """Return what every experiment with a stored result says, in the order of `EXPERIMENTS`, and problems."""
    found, problems = [], []
    for experiment, results in _results(folder):
        try:
            found += decided(experiment, results)
        except ValueError as error:
            problems.append(f"{error}; run it again: simlab run {experiment.name}")
    return found, problems


def decided(experiment: Experiment, results: Results) -> list[Evidence]:
    """Return what `experiment` says from a finished run.

    Raises `ValueError` where it cannot read its own tables, or decides a claim that the board does not have.
    """
    manifest = results.manifest
    try:
        findings: Sequence[Finding] = experiment.decide(results) if experiment.decide else ()
    except (KeyError, FileNotFoundError, IndexError) as error:
        raise ValueError(f"{experiment.name} cannot decide from its tables: {error!r}") from error
    unknown = [finding.claim for finding in findings if finding.claim not in CLAIMS]
    if unknown:
        raise ValueError(f"{experiment.name} decides {', '.join(unknown)}, which is no claim of the board")
    return [Evidence(experiment.name, finding, manifest) for finding in findings]


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of claims by verdict, in the order of `WORDS`."""
    found = Counter(row.verdict for row in rows)
    return {word: found[word] for word in WORDS}


def summary(rows: Sequence[Row]) -> str:
    """Return the counts as the README shows them: a Markdown table, papers by verdict."""
    lines = ["| | " + " | ".join(WORDS) + " |", "|---|" + "---:|" * len(WORDS)]
    papers = [paper for paper in PAPERS.values() if paper != OURS]
    groups = {**{paper: [paper] for paper in papers}, "the five papers": papers, OURS: [OURS]}
    for label, members in groups.items():
        numbers = counts([row for row in rows if row.paper in members])
        lines.append(f"| {label} | " + " | ".join(map(str, numbers.values())) + " |")
    return "\n".join(lines)


def deciding(claim: str, folder: Path | None = None) -> Experiment:
    """Return the experiment behind a claim: the one that decides it, else the first that names it.

    Raises `ValueError` where no experiment does.
    """
    experiments = _experiments()
    for each in _ordered(claim, evidence(folder)[0]):
        return experiments[each.experiment]
    for experiment in experiments.values():
        if claim in experiment.claims:
            return experiment
    raise ValueError(f"no experiment decides {claim} yet: {CLAIMS[claim].statement}")


def _experiments() -> dict[str, Experiment]:
    open_shop()
    catalog = import_module("experiments").EXPERIMENTS
    return {name: import_module(module).EXPERIMENT for name, module in catalog.items()}


def _results(folder: Path | None) -> list[tuple[Experiment, Results]]:
    found = []
    for name, experiment in _experiments().items():
        place = committed_results(name) if folder is None else folder / name
        if (place / MANIFEST_NAME).is_file():
            found.append((experiment, Results(place)))
    return found


def _ordered(claim: str, found: Sequence[Evidence]) -> list[Evidence]:
    """The evidence on a claim, the deciding piece first.

    Exact sums decide identities, static computations measurements, runs dynamics. What is inconclusive yields
    to what is not; the rest keeps the order of `EXPERIMENTS`.
    """
    fitting = {
        "identity": lambda name: name in EXACT,
        "measurement": lambda name: name not in EXACT,
        "dynamics": lambda name: name not in STATIC,
    }[CLAIMS[claim].kind]

    def rank(each: Evidence) -> tuple[bool, bool]:
        return not fitting(each.experiment), each.finding.verdict == "inconclusive"

    return sorted((each for each in found if each.finding.claim == claim), key=rank)


def _row(claim: str, found: Sequence[Evidence]) -> Row:
    entry = CLAIMS[claim]
    row = Row(claim, paper_of(claim), entry.statement, entry.where, entry.kind, UNTESTED)
    if not found:
        return row
    first, *others = found
    finding, manifest = first.finding, first.manifest
    values = asdict(finding)
    del values["claim"]
    if entry.kind == "dynamics" and first.experiment in STATIC:
        values["note"] = f"The part that needs no training: {finding.verdict}. {finding.note}"
        values["verdict"] = "inconclusive"
    return replace(
        row,
        **values,
        also=tuple(f"{each.experiment}: {each.finding.verdict}" for each in others),
        experiment=first.experiment,
        commit=(manifest["commit"] or "unknown")[:12] + ("+" if manifest["dirty"] else ""),
        finished=manifest["finished"],
        minutes=round(manifest["timings"]["total"] / 60, 2),
    )


def _adjusted(rows: list[Row]) -> list[Row]:
    """Correct the p-values of a paper's claims about dynamics for their number."""
    corrected = {row.id: row for row in rows}
    for paper in PAPERS.values():
        tested = [row for row in rows if row.paper == paper and row.kind == "dynamics"]
        p_values = {row.id: p_value(found, row.level) for row in tested if (found := _interval(row))}
        for claim, p in zip(p_values, holm(list(p_values.values())), strict=True):
            corrected[claim] = replace(corrected[claim], adjusted_p=float(p))
    return list(corrected.values())


def _interval(row: Row) -> Interval | None:
    if row.effect is None or row.low is None or row.high is None or row.low == row.high:
        return None
    return Interval(row.effect, row.low, row.high)
