"""One run in plain values: what `Recipe` needs, by the names of its fields, steps, seed, first policy."""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import jax
import jaxlib

from simlab.core.catalog import lookup, shown
from simlab.core.paths import PACKAGE_ROOT
from simlab.objectives import Objective, TokenBatch, objective_value
from simlab.sweeps.aliases import ALIASES
from simlab.sweeps.plain import Plain, number, plain, read
from simlab.sweeps.start import model_of_start, read_start, start_key
from simlab.training.recipe import Recipe

COMPUTING = [
    "core",
    "formats",
    "engines",
    "models",
    "objectives",
    "tasks",
    "rollout",
    "metrics",
    "training",
    "sweeps",
]
"""The rooms whose code decides what a run computes and how it is written."""


def _recipe_fields() -> list[tuple]:
    """The fields of `Recipe`, as they are written in plain values, with the same defaults."""
    fields = []
    for field in dataclasses.fields(Recipe):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if default is dataclasses.MISSING:
            fields.append((field.name, Plain))
        else:
            fields.append((field.name, Plain, dataclasses.field(default_factory=lambda d=default: plain(d))))
    return fields


_Fields: Any = dataclasses.make_dataclass("_Fields", _recipe_fields(), frozen=True, kw_only=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(_Fields):
    """A run, checked and in canonical form: plain values only, equal for equal runs.

    Every field of `simlab.training.recipe.Recipe` under its own name, and

    - `steps`: length of the run;
    - `seed`: of the run's random streams (and of its first parameters if there is no warm start);
    - `warm_start`: None, a file of parameters (a path, or the name of one in `experiments/warm_starts`, or
      `sha256:...` of one there), or a table of `WarmStart`'s fields and `seed`, trained when it is needed:
      a table gives another policy on another processor, a file travels.

    A record is a name (`engines="f32/bf16"`, `objective="grpo+tis"`), or a table of its fields, with the
    `name` of the catalog's entry that it changes: `{"name": "grpo+tis", "correction_clip": 5.0}`.
    Raises `ValueError` naming the field, the value and what is allowed.
    """

    steps: int = 100
    seed: int = 0
    warm_start: Plain = None

    def __post_init__(self):
        """Check every field and put it into canonical form."""
        for name, value in _canonical(self.as_dict()).items():
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Plain]:
        """Return all fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


FIELDS = tuple(field.name for field in dataclasses.fields(RunConfig))


DEFAULTS: dict[str, Plain] = {"engines": "f32/f32", "objective": "grpo"}
"""What a run has when its config names none."""


def run_config(
    values: "RunConfig | Mapping[str, Plain]", changes: Mapping[str, Plain] | None = None
) -> RunConfig:
    """Return the run of `values` with `changes`, whose names may be dotted: `optimizer.learning_rate`.

    Both may use the names of `simlab.sweeps.aliases.ALIASES`. The model defaults to that of the warm start.
    Raises `ValueError` for unknown names, listing the allowed ones, and whatever `RunConfig` raises.
    """
    changes = changes or {}
    table = values.as_dict() if isinstance(values, RunConfig) else {**DEFAULTS, **values}
    short = {name: table.pop(name) for name in ALIASES if name in table}
    # The whole before its parts: `objective` first, then `objective.clip_low`.
    for dotted in sorted(changes, key=lambda name: name.count(".")):
        if dotted not in ALIASES:
            table = _changed(table, dotted.split("."), changes[dotted])
    short |= {name: changes[name] for name in ALIASES if name in changes}
    for name in ALIASES:
        for dotted, value in ALIASES[name](table, short[name]).items() if name in short else ():
            if dotted not in changes:
                table = _changed(table, dotted.split("."), value)
    for name in table:
        _check_known(name)
    if "model" not in table and table.get("warm_start") is not None:
        table["model"] = model_of_start(table["warm_start"])
    missing = [f.name for f in dataclasses.fields(RunConfig) if f.name not in table and _required(f)]
    if missing:
        raise ValueError(f"a run needs {', '.join(missing)}")
    return RunConfig(**table)


def _check_known(name: str) -> None:
    """Raise `ValueError` for an unknown field, naming the place of a nested field of that name."""
    if name in FIELDS:
        return
    places = [path for path in nested_fields() if path.rpartition(".")[2] == name]
    if places:
        others = f" ({len(places) - 1} other fields have this name)" if len(places) > 1 else ""
        raise ValueError(f"unknown field of the run {shown(name)}; did you mean {places[0]!r}?{others}")
    lookup(dict.fromkeys((*FIELDS, *ALIASES)), name, "field of the run")


@cache
def nested_fields() -> tuple[str, ...]:
    """Return the dotted path of every field below those of a run, without the training engine's."""
    paths: dict[str, None] = {}
    for field, hint in typing.get_type_hints(Recipe).items():
        for path in _paths_below(hint, field):
            paths[path] = None
    return tuple(path for path in paths if not path.startswith("engines.train."))


def _paths_below(hint: Any, above: str) -> Iterator[str]:
    for option in (hint, *typing.get_args(hint)):
        if dataclasses.is_dataclass(option):
            for name, inner in typing.get_type_hints(option).items():
                yield f"{above}.{name}"
                yield from _paths_below(inner, f"{above}.{name}")


def recipe_of(config: RunConfig) -> Recipe:
    """Return the recipe that `config` writes down."""
    return _build(config.as_dict())[0]


def run_key(config: RunConfig, width: int, program: str = "") -> str:
    """Return the content hash of a run: 20 hexadecimal digits.

    Of the canonical config (a warm start by its content, not its path), of the width of the slices that it
    is computed in, of what else shapes its `program`, and of the code. A run of one key has one sequence of
    bytes on one kind of device.
    """
    content = config.as_dict() | {"warm_start": start_key(config.warm_start)}
    text = json.dumps([code_digest(), width, program, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def code_digest() -> str:
    """Return the content hash of the rooms `COMPUTING` and of the version of jaxlib."""
    digest = hashlib.sha256(jaxlib.__version__.encode())
    for room in COMPUTING:
        for path in sorted((PACKAGE_ROOT / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def columns(config: RunConfig) -> dict[str, Plain]:
    """Return the config as flat columns: `objective`, `objective.clip_low`, `optimizer.learning_rate`, ..."""
    return dict(_flat(config.as_dict() | {"warm_start": start_key(config.warm_start)}))


def _flat(table: Mapping[str, Plain], above: str = "") -> Iterator[tuple[str, Plain]]:
    for name, value in table.items():
        here = above if name == "name" and above else f"{above}.{name}" if above else name
        if isinstance(value, Mapping):
            yield from _flat(value, here)
        else:
            yield here, value


def _changed(table: Mapping[str, Plain], path: list[str], value: Plain) -> dict[str, Plain]:
    head, *rest = path
    if not rest:
        return {**table, head: value}
    inner = table.get(head)
    inner = {"name": inner} if isinstance(inner, str) else inner or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f"{'.'.join(path)}: {head} is {shown(inner)}, which has no fields")
    return {**table, head: _changed(inner, rest, value)}


def _required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _canonical(values: Mapping[str, Plain]) -> dict[str, Plain]:
    recipe, canonical = _build(values)
    _check_objective(recipe)
    return canonical | {
        "steps": number(values["steps"], "steps", 0),
        "seed": number(values["seed"], "seed", 0),
        "warm_start": read_start(values["warm_start"], recipe.model),
    }


def _build(values: Mapping[str, Plain]) -> tuple[Recipe, dict[str, Plain]]:
    hints = typing.get_type_hints(Recipe)
    records, canonical = {}, {}
    for field in dataclasses.fields(Recipe):
        default = field.default_factory() if callable(field.default_factory) else field.default
        records[field.name], canonical[field.name] = read(
            hints[field.name],
            values[field.name],
            field.name,
            None if default is dataclasses.MISSING else default,
        )
    return Recipe(**records), canonical


def _check_objective(recipe: Recipe) -> None:
    """Find what only shows when an objective meets a batch (stages that do not fit), without computing."""
    leaves, structure = jax.tree.flatten(recipe.objective)
    del leaves  # numbers were checked where they were read
    try:
        _check_structure(structure, recipe.group_size, getattr(recipe, "critic", None) is not None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"objective: {error}") from error


@cache
def _check_structure(structure: Any, group_size: int, has_critic: bool) -> None:
    rows, shape = 2 * group_size, (2 * group_size, 2)
    names = ("logp", "logp_train", "logp_infer", *(("values",) if has_critic else ()))
    arrays = {name: jax.ShapeDtypeStruct(shape, "float32") for name in names}
    arrays |= {
        "rewards": jax.ShapeDtypeStruct((rows,), "float32"),
        "mask": jax.ShapeDtypeStruct(shape, "bool"),
    }

    def value(**arrays: Any) -> Any:
        objective: Objective = jax.tree.unflatten(structure, [0.5] * structure.num_leaves)
        batch = TokenBatch(**arrays, key=jax.random.key(0), group_size=group_size)
        return objective_value(objective, batch)

    jax.eval_shape(value, **arrays)
