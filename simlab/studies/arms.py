"""An arm of a training experiment: its changes to the base config, initial policies and seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from simlab.core.json_value import Json
from simlab.engines import EnginePair
from simlab.formats import ROUNDINGS
from simlab.sweeps import recipe_of, run_config
from simlab.sweeps.config import columns, plain_value
from simlab.sweeps.plain_values import name_record
from simlab.training.recipe import Recipe

KINDS = {
    "nearest_even": "round to nearest",
    "toward_zero": "truncation",
    "stochastic": "stochastic rounding",
}
"""Kinds of noise by the rounding that makes it."""
NAMED = ("engines", "objective", "task", "model", "schedule")
"""Fields of a config that have a name."""


@dataclass(frozen=True)
class Arm:
    """One treatment condition.

    Args:
        id: unique among the arms of all experiments; the column `arm` of the table `runs`.
        changes: what its runs change in the base config of the design, by dotted field.
        initial_policies: a warm start by label; runs of equal label and seed are paired.
        steps: the length of a run.
        seeds: of the runs from each initial policy, over which its estimates are averaged.
        label: the name in legends, without the setting; by default the id.
        x_factor: of an ACRL arm whose reference X is this factor times the discrepancy in the first steps of
            the arm `x_from`, same initial policy and seed.
        x_from: see `x_factor`.
        forked_from: the arm whose runs this arm continues from a checkpoint.
        noise_follows: the arm whose RMS log rho sets the scale of the injected noise, step by step, same
            initial policy and seed.
        noise_factor: the RMS log rho that the noise aims at, in multiples of that of `noise_follows`.
        noise_mismatch: RMS log rho in nats of the first steps; the scale of the injected noise, which stays
            constant in a run, is measured so that each initial policy begins with it.
        own_objective: the name of an objective that no catalog holds and no config can name.
    """

    id: str
    changes: Mapping[str, Json] = field(default_factory=dict)
    initial_policies: Mapping[str, Json] = field(default_factory=dict)
    steps: int = 200
    seeds: Sequence[int] = (0,)
    label: str = ""
    x_factor: float | None = None
    x_from: "Arm | None" = None
    forked_from: "Arm | None" = None
    noise_follows: "Arm | None" = None
    noise_factor: float = 1.0
    noise_mismatch: float | None = None
    own_objective: str = ""

    def __hash__(self) -> int:
        """Return the hash of the id."""
        return hash(self.id)

    def __str__(self) -> str:
        """Return the id."""
        return self.id

    def __repr__(self) -> str:
        """Return the id in quotes: the hash of a criterion is that of its contrast in this form."""
        return repr(self.id)

    @property
    def is_swept(self) -> bool:
        """True if a sweep can run it: its runs do not follow others, and a config can name its objective."""
        return self.forked_from is None and self.noise_follows is None and not self.own_objective

    @property
    def recorded(self) -> dict[str, Json]:
        """Fields that decide the numbers of its runs, as the manifest records them."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values = {name: value for name, value in values.items() if name not in ("id", "label")}
        values |= {name: str(values[name] or "") for name in ("x_from", "forked_from", "noise_follows")}
        values["changes"] = {name: plain_value(name, value) for name, value in self.changes.items()}
        return json.loads(json.dumps(values, default=name_record))

    def differs_from(self, recorded: Mapping[str, Json]) -> bool:
        """Return whether a manifest records other runs; earlier ones record fewer fields."""
        now = self.recorded
        return any(now[name] != value for name, value in recorded.items() if name in now)

    def config(self, base: Mapping[str, Json]) -> dict[str, Json]:
        """Return the resolved config of a run, flat, without initial policy and seed."""
        flat = columns(run_config(base, {**self.changes, "steps": self.steps}))
        flat |= self._references()
        return {name: value for name, value in flat.items() if not name.startswith(("warm_start", "seed"))}

    def describe_recipe(self, base: Mapping[str, Json]) -> dict[str, Json]:
        """Return the parts of the config that the fields of the recipe do not hold: names and references."""
        config = self.config(base)
        return {name: config[name] for name in ("steps", *NAMED)} | self._references()

    def _references(self) -> dict[str, Json]:
        """Return the fields whose values follow from other arms or from no catalog."""
        flat: dict[str, Json] = {}
        if self.x_factor is not None:
            flat["objective.acrl_reference"] = f"{self.x_factor:g} x first discrepancy of {self.x_from}"
        if self.own_objective:
            flat["objective"] = self.own_objective
        if self.forked_from:
            flat["forked_from"] = self.forked_from.id
        if self.noise_mismatch is not None:
            flat["sampling.noise.scale"] = f"that of an RMS log rho of {self.noise_mismatch:g} nats at first"
        if self.noise_follows:
            multiple = "" if self.noise_factor == 1 else f"{self.noise_factor:g} x "
            followed = f"{multiple}the RMS log rho of {self.noise_follows}"
            flat["sampling.noise.scale"] = f"that of {followed}, step by step"
        return flat

    def attributes(self, base: Mapping[str, Json]) -> dict[str, Json]:
        """Return the columns of the table `runs` that select this arm.

        `noise_kind` and `noise_level` describe what the inference engine adds to the training engine: the
        scale of injected noise or its `noise_mismatch`, or the fewest mantissa bits of its activations and
        weights.
        """
        flat = self.config(base)
        recipe = recipe_of(run_config(base, self.changes))
        train, infer = _engine_names(flat["engines"], recipe.engines)
        kind, level = _describe_noise(recipe)
        level = level if self.noise_mismatch is None else self.noise_mismatch
        names = ("task", "model", "objective", "schedule", "optimizer.learning_rate", "minibatches")
        chosen = {name.rpartition(".")[2]: flat[name] for name in (*names, "old_log_probs")}
        numbers = {"hidden_size": int(recipe.model.hidden_size), "noise_level": level}
        sides = {"train_engine": train, "infer_engine": infer, "noise_kind": kind}
        return {"label": self.label or self.id, **chosen, **sides, **numbers}


def _engine_names(name: str, pair: EnginePair) -> list[str]:
    """Return the names of both engines; the name of a pair in a module does not have them."""
    names = name.split("/")
    return names if len(names) == 2 else [name_record(each)["name"] for each in (pair.train, pair.infer)]


def _describe_noise(recipe: Recipe) -> tuple[str, float]:
    if recipe.sampling.noise is not None:
        return f"{recipe.sampling.noise.kind.replace('_', ' ')} noise", float(recipe.sampling.noise.scale)
    infer, train = recipe.engines.infer.projection, recipe.engines.train.projection
    pairs = (infer.activations, train.activations), (infer.weights, train.weights)
    changed = [mine for mine, theirs in pairs if repr(mine) != repr(theirs) and mine.format is not None]
    if not changed:
        return "none", 0.0
    rounding = next(name for name, each in ROUNDINGS.items() if repr(each) == repr(changed[0].rounding))
    bits = min(int(site.format.mantissa_bits) for site in changed if site.format is not None)
    return KINDS.get(rounding, rounding), float(bits)
