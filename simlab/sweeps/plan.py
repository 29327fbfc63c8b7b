"""Plan a sweep: the missing runs, grouped by compiled function."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax

from simlab.core.catalog import shorten
from simlab.core.json_value import Json
from simlab.models.config import TransformerConfig
from simlab.sweeps.aliases import PATHS, PROJECTION
from simlab.sweeps.code_version import check_settings
from simlab.sweeps.column_names import implied_columns, short_names, with_aliases
from simlab.sweeps.config import RunConfig, columns, recipe_of, run_config, run_key
from simlab.sweeps.grids import Grid
from simlab.sweeps.own_records import SOURCE
from simlab.sweeps.program import lone_recipe, program_name, static_signature, swept_recipe
from simlab.sweeps.switch_objective import SwitchObjective
from simlab.training.recipe import Recipe

# Length of a sequence whose attention takes as long as the layers, measured with 21 and 70 tokens on a CPU.
ATTENTION_LENGTH = 40.0
# Fields that make another run of the same arm.
REPEATS = ("seed", "warm_start")


@dataclass(frozen=True)
class PlannedRun:
    """A run, its key, and the arm that it belongs to.

    `has_lone_objective` marks a run whose compile group has no other objective.
    """

    key: str
    config: RunConfig
    arm: str
    has_lone_objective: bool = False

    @property
    def recipe(self) -> Recipe:
        """The recipe as the run is computed; its bits do not depend on `has_lone_objective`."""
        return lone_recipe(self.config) if self.has_lone_objective else swept_recipe(self.config)


@dataclass(frozen=True)
class CompileGroup:
    """Runs that share compiled functions."""

    runs: tuple[PlannedRun, ...]

    @property
    def steps(self) -> int:
        """Steps of each run."""
        return self.runs[0].config.steps

    @property
    def cost(self) -> float:
        """Return the relative cost of a step: weights times tokens, and what attention and a critic add."""
        recipe = recipe_of(self.runs[0].config)
        length = recipe.task.prompt_length + recipe.task.response_length
        tokens = recipe.prompts_per_step * recipe.group_size * length
        networks = 1 if recipe.critic is None else 2
        return float(weight_count(recipe.model)) * tokens * networks * (1 + length / ATTENTION_LENGTH)


def weight_count(model: TransformerConfig) -> int:
    """Return the number of weights that multiply a token; every expert reads every token."""
    inner = model.num_experts * model.moe_intermediate_size or model.intermediate_size
    attention = (sum(model.heads) + model.num_attention_heads) * model.head_dim
    return model.num_hidden_layers * model.hidden_size * (attention + 3 * inner)


@dataclass(frozen=True)
class Plan:
    """All runs in the order of the grid, and the missing ones in groups, largest first."""

    runs: tuple[PlannedRun, ...]
    groups: tuple[CompileGroup, ...]
    runs_per_batch: int

    @property
    def missing_keys(self) -> list[str]:
        """Keys of the runs to compute."""
        return [run.key for group in self.groups for run in group.runs]

    @property
    def missing(self) -> int:
        """Number of runs to compute."""
        return len(self.missing_keys)

    @property
    def batches(self) -> int:
        """Number of run batches to compute."""
        return sum(-(-len(group.runs) // self.runs_per_batch) for group in self.groups)

    @property
    def steps(self) -> int:
        """Number of run-steps to compute."""
        return sum(len(group.runs) * group.steps for group in self.groups)

    def describe(self) -> str:
        """Return one line: runs, compiled functions, run batches, run-steps."""
        done = len(self.runs) - self.missing
        stored = f" ({done} are there already)" if done else ""
        batches = _count(self.batches, "run batch", "run batches")
        return (
            f"{_count(len(self.runs), 'run')}{stored}; "
            f"{_count(len(self.groups), 'compiled function')}, {batches} "
            f"of {self.runs_per_batch}, {self.steps} run-steps to compute"
        )


def _count(number: int, word: str, plural: str = "") -> str:
    return f"{number} {word if number == 1 else plural or f'{word}s'}"


def _describe_error(base: RunConfig | Mapping[str, Json]) -> str:
    """Return the error of `base` alone, "" if it is valid: then the points of the grid cause the error."""
    try:
        run_config(base)
    except ValueError as error:
        return str(error)
    return ""


def expand(
    base: RunConfig | Mapping[str, Json],
    grid: Grid,
    runs_per_batch: int,
    configs: Sequence[RunConfig] | None = None,
) -> tuple[PlannedRun, ...]:
    """Return the runs of a grid, checked, each key once; `configs` are those of its points if already read.

    Raises `ValueError` for an invalid point of the grid, naming it, and for two named arms that are the same
    run.
    """
    configs = list(read_configs(base, grid)) if configs is None else configs
    arms = _arms(grid, configs)
    runs: dict[str, PlannedRun] = {}
    for config, arm, point in zip(configs, arms, grid.points, strict=True):
        key = run_key(config, runs_per_batch, program_name(swept_recipe(config)))
        same = runs.setdefault(key, PlannedRun(key, config, arm))
        if point.arm and same.arm != arm:
            raise ValueError(f"arms {same.arm!r} and {arm!r} must differ; they are the same run. Remove one.")
    return tuple(runs.values())


def read_configs(base: RunConfig | Mapping[str, Json], grid: Grid) -> Iterator[RunConfig]:
    """Yield the config of each point; raise `ValueError` for an invalid one, naming the point."""
    check_settings()
    for point in grid.points:
        try:
            yield run_config(base, point.changes)
        except ValueError as error:
            is_named = point.changes and _describe_error(base) != str(error)
            point_name = f" (at {point.arm or shorten(dict(point.changes))})" if is_named else ""
            raise ValueError(f"{error}{point_name}") from error


def make_plan(runs: Sequence[PlannedRun], missing: Sequence[str], runs_per_batch: int) -> Plan:
    """Group the missing runs by static signature."""
    wanted, groups = set(missing), {}
    for run in runs:
        if run.key in wanted:
            signature = static_signature(swept_recipe(run.config), run.config.steps)
            groups.setdefault(signature, []).append(run)
    ordered = sorted(map(_mark_lone_objective, groups.values()), key=len, reverse=True)
    return Plan(tuple(runs), tuple(CompileGroup(tuple(group)) for group in ordered), runs_per_batch)


def _mark_lone_objective(group: list[PlannedRun]) -> list[PlannedRun]:
    """Return the runs of a compile group, marked if their objectives differ only in numbers."""
    objectives = [swept_recipe(run.config).objective for run in group]
    selections = {each.selection for each in objectives if isinstance(each, SwitchObjective)}
    # Elsewhere a kernel computes all alternatives, and the compiler may contract other products and sums.
    is_lone = len(selections) == 1 and jax.default_backend() == "cpu"
    return [replace(run, has_lone_objective=is_lone) for run in group]


def _arms(grid: Grid, configs: Sequence[RunConfig]) -> list[str]:
    """Name arms by their points and by the other columns that vary, except repeats."""
    tables = [with_aliases(columns(config), config.aliases) for config in configs]
    names = dict.fromkeys(name for table in tables for name in table)
    repeats = tuple(f"{name}." for name in REPEATS)
    spelled = {PATHS.get(field, field) for point in grid.points for field in point.named}
    implied = implied_columns(tables)
    varied = [
        name
        for name in names
        if name not in {*REPEATS, *implied}
        and not name.startswith(repeats)
        and not name.endswith(SOURCE)
        and not any(name == field or name.startswith(f"{field}.") for field in spelled)
        and len({repr(table.get(name)) for table in tables}) > 1
    ]
    other = {name: name.replace(".weights", ".activations") for name in varied}
    shared = {
        name
        for name in varied
        if name.startswith(f"{PROJECTION}.w")
        and other[name] in varied
        # Weights as the activations are not named twice.
        and all(table.get(name) == table.get(other[name]) for table in tables)
    }
    short = short_names(names)
    labels = []
    for point, table in zip(grid.points, tables, strict=True):
        parts = [
            str(table[name]) if isinstance(table[name], str) else f"{short[name]}={table[name]}"
            for name in varied
            if name in table and name not in shared
        ]
        labels.append(", ".join([point.arm, *parts] if point.arm else parts) or "all")
    return labels
