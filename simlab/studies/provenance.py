"""Check where stored results come from: a clean commit of this history, one processor family per policy."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from simlab.core.json_value import Json
from simlab.core.manifest import MANIFEST_NAME, UNKNOWN_FAMILY, Manifest, ask_git
from simlab.core.paths import checkout_root
from simlab.core.results import Results
from simlab.studies.design import Design
from simlab.studies.loading import load_experiments


def check_results(folder: Path | None = None) -> list[str]:
    """Return what is wrong with the results in `folder`, one line each; empty if nothing is.

    Args:
        folder: one folder per experiment; default the results shipped with the code.
    """
    root, experiments = checkout_root(), load_experiments()
    problems = []
    for results in _list_stored(folder):
        lines = [*check_result(results, root)]
        experiment = experiments.get(results.folder.name)
        if experiment is not None and experiment.design is not None:
            lines += check_design(results.manifest, experiment.design)
        problems += [f"{results.folder.name}: {line}" for line in lines]
    return problems


def list_migrations(folder: Path | None = None) -> dict[str, str]:
    """Return how stored results were changed after their runs: names of columns, or rounded numbers.

    A result keeps the rows of the one that it resumed from, and what was changed in them.
    """
    found = {}
    for results in _list_stored(folder):
        manifests = [results.manifest]
        while earlier := manifests[-1]["config"].get("resumed_from"):
            manifests.append(earlier)
        if changes := [each["migrated_by"] for each in manifests if "migrated_by" in each]:
            found[results.folder.name] = "; ".join(changes)
    return found


def _list_stored(folder: Path | None) -> list[Results]:
    directory = folder or checkout_root() / "experiments" / "results"
    return [Results(path.parent) for path in sorted(directory.glob(f"*/{MANIFEST_NAME}"))]


def check_result(results: Results, checkout: Path) -> Iterator[str]:
    """Yield what is wrong with one result."""
    yield from check_commit(results.manifest, checkout)
    if "runs" not in results.table_names or "initial_policy" not in (runs := results.table("runs")):
        return
    if "processor_family" not in runs:
        # One process without interruption: the processor of the manifest is that of every run.
        if "processor" not in results.manifest["device"] or "resumed_from" in results.manifest["config"]:
            yield "does not say on which processor each initial policy ran"
        return
    families = runs.groupby("initial_policy")["processor_family"].unique()
    for policy, names in families.items():
        if UNKNOWN_FAMILY in names:
            yield f"does not say on which processor all arms of initial policy {policy!r} ran"
        elif len(names) > 1:
            yield f"arms of initial policy {policy!r} ran on {', '.join(names)}; one family is allowed"


def check_design(manifest: Manifest, design: Design) -> Iterator[str]:
    """Yield which arms of a manifest are defined differently now: a rule is of the arms that it names."""
    recorded = recorded_arms(manifest["config"])
    for name in recorded.keys() & design.arms.keys():
        if design.arms[name].differs_from(recorded[name]):
            yield f"arm {name!r} was {recorded[name]}, and is {design.arms[name].recorded} now"


def recorded_arms(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return the records of the arms of a result, those included that it resumed from."""
    before = config.get("resumed_from")
    return (recorded_arms(before["config"]) if before else {}) | config.get("arms", {})


def check_commit(manifest: Manifest, checkout: Path) -> Iterator[str]:
    """Yield what is wrong with the commit of a manifest, and with those of the results it resumed from."""
    commit = manifest["commit"]
    if not commit:
        yield "names no commit"
    elif ask_git(checkout, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        yield f"commit {commit[:12]} does not exist"
    elif ask_git(checkout, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        yield f"commit {commit[:12]} is not an ancestor of HEAD"
    if manifest["dirty"] is not False:
        yield "the tree was changed"
    if earlier := manifest["config"].get("resumed_from"):
        for line in check_commit(earlier, checkout):
            yield f"resumed from {earlier['name']}: {line}"
