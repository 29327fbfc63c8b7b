"""Short column names for the fields of a config: `learning_rate` for `optimizer.learning_rate`."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pandas as pd

from simlab.core.json_value import Json
from simlab.sweeps.aliases import COLUMNS, OPERAND_ALIASES, PROJECTION

PATHS = "paths"
"""Key in `DataFrame.attrs` of the map from short names to full paths."""


def flatten(
    table: Mapping[str, Json],
    is_value: Callable[[Mapping[str, Json]], bool] = lambda _: False,
    above: str = "",
) -> Iterator[tuple[str, Json]]:
    """Yield dotted paths and values of nested tables; a table for which `is_value` holds is a value."""
    for name, value in table.items():
        if isinstance(value, Mapping) and not is_value(value):
            yield from flatten(value, is_value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return a unique name per dotted path: an alias, or its shortest ending that no other path shares."""
    paths = list(paths)
    tails = {alias: tail for alias, tail in OPERAND_ALIASES.items() if alias not in paths}
    names = {f"{PROJECTION}.activations.{tail}": alias for alias, tail in tails.items()}
    endings = Counter(ending for path in paths for ending in _endings(path))
    top_level = {path for path in paths if "." not in path}
    for path in paths:
        if path in top_level:
            names[path] = path
        elif path not in names:
            free = (e for e in _endings(path) if endings[e] == 1 and e not in top_level)
            names[path] = next(free, path.replace(".", "_"))
    return {path: names[path] for path in paths}


def with_aliases(columns: Mapping[str, Json], aliases: Mapping[str, Json]) -> dict[str, Json]:
    """Return the columns of a run with those of the aliases that it uses, after its engines."""
    return {"engines": columns["engines"], **aliases, **columns}


def implied_columns(rows: Sequence[Mapping[str, Json]]) -> set[str]:
    """Return the columns of `rows` that follow from the columns of aliases, engines and task."""
    names = set().union(*rows)
    used = [alias for alias in COLUMNS if alias in names]

    def has_one_value(column: str) -> bool:
        """Return whether both operands have the same value, which the sources determine."""
        weights, values = column.replace(".activations", ".weights"), {}
        for row in rows:
            source = repr([row.get(name) for name in (*used, "engines", "task")])
            value = repr(row.get(column))
            if values.setdefault(source, value) != value or repr(row.get(weights)) != value:
                return False
        return True

    implied = {column for alias in used for column in COLUMNS[alias]}
    implied = {column for column in implied if has_one_value(column.replace(".weights", ".activations"))}
    return implied & names


def with_short_names(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table `runs` with short column names; `attrs["paths"]` maps them to full paths.

    Columns that follow from those of the aliases are left out. Weights that have the format of the
    activations, in every run, share the column of the alias.
    """
    same = [
        weights
        for tail in OPERAND_ALIASES.values()
        for activations, weights in [(f"{PROJECTION}.activations.{tail}", f"{PROJECTION}.weights.{tail}")]
        if {activations, weights} <= set(runs) and runs[activations].equals(runs[weights])
    ]
    implied = implied_columns(runs.to_dict("records"))
    distinct = runs.drop(columns=list({*same, *implied}))
    names = short_names(map(str, distinct))
    renamed = distinct.rename(columns=names)
    renamed.attrs[PATHS] = {short: path for path, short in names.items()}
    return renamed


def _endings(path: str) -> list[str]:
    """Return the endings of a dotted path, the shortest first, with underscores."""
    parts = path.split(".")
    return ["_".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
