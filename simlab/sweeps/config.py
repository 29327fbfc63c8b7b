"""The config of one run: the fields of `Recipe`, steps, seed and initial policy in plain values."""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from functools import cache

import jax
from jax import Array

from simlab.core.catalog import lookup, shorten
from simlab.core.json_value import Json
from simlab.core.ranges import SEED, STEPS
from simlab.engines import Site
from simlab.formats import ROUNDINGS, StochasticRounding
from simlab.objectives import Objective, TokenBatch, objective_value
from simlab.objectives.advantages import GROUP_BASELINES
from simlab.sweeps.aliases import ALIASES, COLUMNS, check_named_once, column_value
from simlab.sweeps.code_version import code_digest
from simlab.sweeps.column_names import flatten
from simlab.sweeps.config_reader import (
    FieldError,
    default_of,
    locate_errors,
    number,
    override_owners,
    paths_below,
    read,
    read_fields,
)
from simlab.sweeps.product_check import check_products
from simlab.sweeps.start import model_of_start, read_start, start_key
from simlab.sweeps.verl_names import find_fields
from simlab.training.recipe import Recipe

OWN_FIELDS: dict[str, Json] = {"steps": 100, "seed": 0, "warm_start": None}
DEFAULTS: dict[str, Json] = {"engines": "f32/f32", "objective": "grpo", **OWN_FIELDS}
"""Values that a run has if its config omits them, besides the defaults of `Recipe`."""
_RECIPE_FIELDS = {field.name: field for field in dataclasses.fields(Recipe)}
_HINTS = typing.get_type_hints(Recipe, include_extras=True)
FIELDS = (*_RECIPE_FIELDS, *OWN_FIELDS)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A validated run: its recipe, and its canonical form in plain values, identical for equal runs.

    `run_config` makes it. `table` holds every field of `simlab.training.recipe.Recipe` under its name, and

    - `steps`: length of the run;
    - `seed`: of the run's random streams (and of its initial parameters if there is no warm start);
    - `warm_start`: None, a file of parameters (a path, or the name of one in `experiments/warm_starts`, or
      `sha256:...` of one there), or a table of `WarmStart`'s fields and `seed`, trained when it is needed.
      A table gives a different policy on a different processor; a file does not.

    `aliases` holds the values given by the names of `simlab.sweeps.aliases.COLUMNS`.

    A record is a name (`engines="f32/bf16"`, `objective="grpo+tis"`), a table of its fields, with the `name`
    of the catalog's entry that it changes (`{"name": "grpo+tis", "correction_clip": 5.0}`), a user-defined
    component as `"mymodule:name"`, or the record itself.
    """

    recipe: Recipe = dataclasses.field(repr=False, compare=False)
    table: Mapping[str, Json]
    aliases: Mapping[str, Json] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def steps(self) -> int:
        """Length of the run."""
        return self.table["steps"]

    @property
    def seed(self) -> int:
        """Seed of the run's random streams."""
        return self.table["seed"]

    @property
    def warm_start(self) -> Json:
        """The source of the initial parameters."""
        return self.table["warm_start"]

    def as_dict(self) -> dict[str, Json]:
        """Return all fields by name, in plain values."""
        return dict(self.table)


def run_config(
    values: "RunConfig | Mapping[str, Json]", changes: Mapping[str, Json] | None = None
) -> RunConfig:
    """Return the validated run of `values` with `changes`.

    Args:
        values: fields of the run. The model defaults to that of the warm start.
        changes: fields to replace; names may be dotted, such as `optimizer.learning_rate`. Both arguments
            accept the short names of `simlab.sweeps.aliases.ALIASES`.

    Raises:
        ValueError: For an invalid field; the message gives the field, the value and the allowed values.

    Example:
        >>> base = run_config({"task": "add", "model": "tiny-dense", "engines": "f32/bf16"})
        >>> run_config(base, {"learning_rate": 1e-3}).recipe.optimizer.learning_rate
        0.001
    """
    if not isinstance(values, RunConfig | Mapping):
        raise ValueError(
            f"a run must be a table of fields such as {{'task': 'add'}}, or a RunConfig, "
            f"got {shorten(values)}."
        )
    for given in (changes or {}, {} if isinstance(values, RunConfig) else values):
        for name, value in given.items():
            _check_known(name, value)
        check_named_once(given)
    table = values.as_dict() if isinstance(values, RunConfig) else _with_defaults(values)
    changes = {name: plain_value(name, value) for name, value in (changes or {}).items()}
    short = {name: table.pop(name) for name in ALIASES if name in table}
    table = _change_fields(table, {name: value for name, value in changes.items() if name not in ALIASES})
    short |= {name: changes[name] for name in ALIASES if name in changes}
    used = {}
    for name in ALIASES:
        set_fields = ALIASES[name](table, short[name]) if name in short else {}
        for dotted, value in set_fields.items():
            if dotted not in changes:
                table = _change_field(table, dotted.split("."), value)
        # A change of a field below is kept.
        below = tuple(f"{dotted}." for dotted in set_fields)
        table = _change_fields(table, {path: changes[path] for path in changes if path.startswith(below)})
        if name in COLUMNS and set_fields and not set(set_fields) & set(changes):
            used[name] = column_value(short[name])
    if "model" not in table and table.get("warm_start") is not None:
        table["model"] = model_of_start(table["warm_start"])
    for name, field in _RECIPE_FIELDS.items():
        if name not in table and default_of(field) is dataclasses.MISSING:
            raise ValueError(f"{name} must be given, for example {name} = {EXAMPLES[name]!r}.")
    return dataclasses.replace(_check_table(table), aliases=used)


def _with_defaults(values: Mapping[str, Json]) -> dict[str, Json]:
    """Return `values` with the defaults of a run; a table without a name changes that of its field."""
    values = {name: plain_value(name, value) for name, value in values.items()}
    for name, default in DEFAULTS.items():
        if isinstance(default, str) and isinstance(values.get(name), Mapping):
            values[name] = {"name": default, **values[name]}
    return _change_fields(DEFAULTS, values)


def _change_fields(table: Mapping[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    # A record before its fields: `objective` first, then `objective.clip_low`.
    for dotted in sorted(changes, key=lambda name: name.count(".")):
        table = _change_field(table, dotted.split("."), changes[dotted])
    return dict(table)


def plain_value(name: str, value: object) -> Json:
    """Return the canonical form of a record in the field `name`; other values are returned unchanged."""
    is_record = dataclasses.is_dataclass(value) and name in _HINTS
    return read(_HINTS[name], value, name).plain if is_record else value


EXAMPLES = {"task": "add", "model": "tiny-dense"}


def _check_table(table: Mapping[str, Json]) -> RunConfig:
    fields = read_fields(Recipe, {name: table[name] for name in _RECIPE_FIELDS if name in table})
    recipe = fields.record
    _check_objective(recipe)
    _check_rounding(recipe)
    check_products(recipe)
    numbers = {}
    for name, allowed in (("steps", STEPS), ("seed", SEED)):
        with locate_errors(name):
            numbers[name] = number(table[name], int)
            allowed.check(numbers[name])
    return RunConfig(
        recipe, fields.plain | numbers | {"warm_start": read_start(table["warm_start"], recipe.model)}
    )


def _check_known(name: object, value: Json) -> None:
    """Raise `ValueError` for an unknown field, naming the path of a nested field of that name."""
    if not isinstance(name, str):
        raise ValueError(f"a field of the run must be a name, got {shorten(name)}.")
    if name in ALIASES or name.partition(".")[0] in FIELDS:
        return
    name = next((path for path, _ in flatten({name: value})), name)
    if meant := suggest_field(name):
        raise ValueError(f"unknown field of the run {shorten(name)}; did you mean {meant}")
    lookup(dict.fromkeys((*FIELDS, *ALIASES)), name, "field of the run")


def suggest_field(name: str) -> str:
    """Return the path of a nested field called `name`, as the end of a question; "" if there is none."""
    last = name.rpartition(".")[2]
    if fields := find_fields(last):
        return f"{' and '.join(map(repr, fields))}?"
    paths = [path for path in nested_fields() if path.rpartition(".")[2] == last]
    count = len(paths) - 1
    others = f" ({count} other field{'s have' if count > 1 else ' has'} this name)" if count > 0 else ""
    return f"{paths[0]!r}?{others}" if paths else ""


@cache
def nested_fields() -> tuple[str, ...]:
    """Return the dotted path of every field below those of a run, without the training engine's."""
    hints = typing.get_type_hints(Recipe).items()
    paths = dict.fromkeys(path for field, hint in hints for path in paths_below(hint, field))
    overrides = (f"objective.{name}" for name in override_owners())
    return (*(path for path in paths if not path.startswith("engines.train.")), *overrides)


def recipe_of(config: RunConfig) -> Recipe:
    """Return the recipe of a config."""
    return config.recipe


def run_key(config: RunConfig, runs_per_batch: int, program: str = "") -> str:
    """Return the content hash of a run: 20 hexadecimal digits.

    The hash covers the canonical config (a warm start by its content, not its path), the size of the run
    batches, everything else that shapes its `program`, and the code. On one kind of device, runs with equal
    keys have the same bytes.
    """
    content = config.as_dict() | {"warm_start": start_key(config.warm_start)}
    text = json.dumps([code_digest(), runs_per_batch, program, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def columns(config: RunConfig) -> dict[str, Json]:
    """Return the config as flat columns: `objective`, `objective.clip_low`, `optimizer.learning_rate`, ..."""
    table = config.as_dict() | {"warm_start": start_key(config.warm_start)}
    return {path.removesuffix(".name"): value for path, value in flatten(table)}


def _change_field(table: Mapping[str, Json], path: list[str], value: Json) -> dict[str, Json]:
    head, *rest = path
    if not rest:
        return {**table, head: value}
    inner = table.get(head)
    inner = {"name": inner} if isinstance(inner, str) else inner or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f"{'.'.join(path)}: {head} is {shorten(inner)}, which has no fields")
    return {**table, head: _change_field(inner, rest, value)}


def _check_rounding(recipe: Recipe) -> None:
    """Raise `ValueError` for stochastic rounding at a site that gets no random key."""
    sites = jax.tree_util.tree_leaves_with_path(recipe.engines, is_leaf=lambda node: isinstance(node, Site))
    for path, site in sites:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        drawn = name.startswith("infer.") and name.endswith(".weights")
        if isinstance(site, Site) and isinstance(site.rounding, StochasticRounding) and not drawn:
            allowed = ", ".join(each for each in ROUNDINGS if each != "stochastic")
            raise FieldError(
                f"engines.{name}.rounding",
                f"must be one of {allowed}, got 'stochastic'. Only weights of the inference engine can "
                f"round stochastically.",
            )


def _check_objective(recipe: Recipe) -> None:
    """Raise `ValueError` for stages that do not fit together, by tracing the objective on shapes."""
    # Numbers were checked where they were read.
    leaves, structure = jax.tree_util.tree_flatten_with_path(recipe.objective)
    advantage: typing.Any = getattr(recipe.objective, "advantage", None)
    if recipe.group_size == 1 and advantage in GROUP_BASELINES:
        raise FieldError(
            "group_size",
            f"must be at least 2 for the advantage {advantage.__name__}, which compares the responses to a "
            f"prompt, got 1.",
        )
    with locate_errors("objective"):
        for path, leaf in leaves:
            if callable(leaf):
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                raise ValueError(f"{name} must be a record, got a function. Make it a class with `pytree`.")
        _check_structure(structure, recipe.group_size, recipe.critic is not None)


@cache
def _check_structure(structure: typing.Any, group_size: int, has_critic: bool) -> None:
    shape = (2 * group_size, 2)
    shapes = dict.fromkeys(("logp", "logp_train", "logp_infer", "sum_squared_probabilities"), shape)
    shapes |= {"rewards": shape[:1]} | ({"values": shape} if has_critic else {})
    # A training run fills the columns of the vocabulary that an objective reads.
    shapes |= dict.fromkeys(("logp_vocabulary", "logp_infer_vocabulary"), (*shape, 3))
    arrays = {name: jax.ShapeDtypeStruct(each, "float32") for name, each in shapes.items()}
    arrays["tokens"] = jax.ShapeDtypeStruct(shape, "int32")
    arrays["mask"] = jax.ShapeDtypeStruct(shape, "bool")

    def value(**arrays: Array) -> Array:
        objective: Objective = jax.tree.unflatten(structure, [0.5] * structure.num_leaves)
        batch = TokenBatch(**arrays, key=jax.random.key(0), group_size=group_size)
        return objective_value(objective, batch)

    jax.eval_shape(value, **arrays)
