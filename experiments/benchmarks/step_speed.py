"""Measure a training step and its parts, its arithmetic floor, and the same step in PyTorch and TRL."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import step_floor
from experiments.benchmarks.engine_speed import measure_engines
from experiments.benchmarks.step_floor import SIDE_BY_SIDE, timed_call
from experiments.benchmarks.timing import Call, compile_call, interleave, time_call
from simlab.checkpoints import save_checkpoint
from simlab.core.experiment import Experiment, ExperimentContext
from simlab.core.plugins import import_module
from simlab.engines import find_pair
from simlab.models.config import MODELS, TransformerConfig
from simlab.models.parameters import Params, init_params
from simlab.models.transformer import response_logps
from simlab.objectives import get_objective
from simlab.rollout import response_mask
from simlab.serving.open_engine import find_interpreter
from simlab.tasks import EOS_TOKEN_ID, TASKS
from simlab.tasks.vocabulary import CHARACTERS
from simlab.training.recipe import Recipe, initial_state
from simlab.training.step import rollout, score, train_step

Cases = dict[tuple[str, str], Call]
"""Timed calls by implementation and stage; `updates` of simlab are its step minus rollout and score."""
THREADS = sorted({1, os.cpu_count() or 1})
# Engine pair, and whether its numbers are compile-time constants or traced, so that they can be swept.
VARIANTS = {
    "float32": ("f32/f32", "constants"),
    "emulated": ("f32/fp8-s4-truncated", "constants"),
    "emulated, traced": ("f32/fp8-s4-truncated", "arguments"),
}
LIMITS = {
    "step / floor": 2.0,
    "rollout / floor": 3.0,
    "emulated / float32": 1.25,
    "pytorch / emulated": 1.5,
    "trl / emulated": 4.0,
}
# Bounds for float32 sums in another order: up to 96 terms for log-probs, all tokens for gradients.
LOGP_BOUND, GRADIENT_BOUND = 2e-5, 1e-4
# A last bit of a sum that differs crosses a rounding threshold now and then: measured against what the
# emulation itself moves.
EMULATED_BOUND = 0.05


def recipe_of(pair: str, smoke: bool) -> Recipe:
    """Return the recipe of the timed step, or one that compiles in seconds."""
    small = TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    return Recipe(
        engines=find_pair(pair),
        objective=get_objective("grpo"),
        task=TASKS["add"](),
        model=small if smoke else MODELS["tiny-dense"],
        prompts_per_step=4 if smoke else 8,
        group_size=2 if smoke else 16,
    )


def simlab_cases(name: str, recipe: Recipe, params: Params) -> Cases:
    """Rollout, scoring and step of one variant, compiled; the same parameters at every call."""
    state = initial_state(recipe, params, jax.random.key(1))
    trajectory = jax.jit(rollout)(recipe, state)
    stages: dict[str, tuple[Callable, tuple]] = {
        "rollout": (rollout, (state,)),
        "score": (score, (state.params, trajectory)),
        "step": (train_step, (state,)),
    }
    if VARIANTS[name][1] == "constants":
        stages = {stage: (partial(function, recipe), rest) for stage, (function, rest) in stages.items()}
    else:
        stages = {stage: (function, (recipe, *rest)) for stage, (function, rest) in stages.items()}
    return {(name, stage): compile_call(function, *rest) for stage, (function, rest) in stages.items()}


class Peer:
    """The PyTorch reference on some threads, compiled; raises `ImportError` without torch."""

    def __init__(self, threads: int, recipe: Recipe, params: Params):
        """Compile it and sample once."""
        self.torch = import_module("torch")
        self.torch.set_num_threads(threads)
        self.torch._inductor.config.cpp.threads = threads
        self.torch._dynamo.reset()
        self.module = import_module("experiments.benchmarks.step_speed_torch")
        self.threads, self.recipe = threads, recipe
        length = recipe.task.response_length
        self.reference = self.module.TorchReference(recipe.model, params, length, self.module.TruncatedFp8)
        prompts = recipe.task.prompts(jax.random.key(2), recipe.prompts_per_step)
        self.prompts = self.torch.tensor(np.asarray(prompts, np.int64))
        self.sampled = self.reference.rollout(self.prompts, recipe.group_size)
        self.old = self._score()

    def cases(self) -> Cases:
        """Every stage, each on the threads of this peer."""
        sizes = self.recipe.group_size, self.recipe.minibatches
        calls = {
            "rollout": lambda: self.reference.rollout(self.prompts, self.recipe.group_size),
            "score": self._score,
            "updates": lambda: self.reference.update(self.sampled, self.old, *sizes),
            "step": lambda: self.reference.step(self.prompts, *sizes),
        }
        name = name_peer("pytorch", self.threads)
        return {(name, stage): self._on_threads(call) for stage, call in calls.items()}

    def _score(self) -> Any:
        with self.torch.no_grad():
            return self.reference.score(self.module.Float32, *self.sampled[:2])

    def _on_threads(self, call: Call) -> Call:
        def run_once() -> None:
            self.torch.set_num_threads(self.threads)
            call()

        return run_once

    def agreement(self, params: Params) -> list[dict]:
        """Compare log-probabilities of both engines and the gradient at theta_old with those of simlab."""
        prompts, responses, _ = (jnp.asarray(x.numpy().astype(np.int32)) for x in self.sampled)
        advantages = np.random.default_rng(0).standard_normal(len(prompts)).astype(np.float32)
        logps, engines = jax.jit(response_logps, static_argnums=1), self.recipe.engines
        train, infer = (
            np.asarray(logps(params, self.recipe.model, engine, prompts, responses).logp)
            for engine in (engines.train, engines.infer)
        )
        with self.torch.no_grad():
            their_train, their_infer = (
                self.reference.response_logps(engine, *self.sampled[:2]).numpy()
                for engine in (self.module.Float32, self.module.TruncatedFp8)
            )
        gradients = self._gradient(advantages), _gradient(self.recipe, params, prompts, responses, advantages)
        apart = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(*gradients, strict=True)]
        emulated = _rms(their_infer - infer) / _rms(infer - train)
        measured = (
            ("float32 log-probs, largest difference", np.abs(their_train - train).max(), LOGP_BOUND),
            ("gradient, largest relative difference of a leaf", max(apart), GRADIENT_BOUND),
            ("emulated log-probs, rms difference over rms mismatch", emulated, EMULATED_BOUND),
        )
        return [{"quantity": name, "difference": float(x), "bound": bound} for name, x, bound in measured]

    def _gradient(self, advantages: np.ndarray) -> list[np.ndarray]:
        for leaf in self.reference.leaves:
            leaf.grad = None
        old = self.old.detach()
        self.reference.loss(*self.sampled[:2], self.torch.tensor(advantages), old).backward()
        return [leaf.grad.numpy() for leaf in self.reference.leaves]


def _gradient(
    recipe: Recipe, params: Params, prompts: Any, responses: Any, advantages: Any
) -> list[np.ndarray]:
    """Gradient of GRPO's loss at ratio one, with leaves in the order of the reference."""
    mask = response_mask(responses, EOS_TOKEN_ID).astype(jnp.float32)

    def loss(params: Params) -> jax.Array:
        logp = response_logps(params, recipe.model, recipe.engines.train, prompts, responses).logp
        return -jnp.mean(jnp.sum(logp * mask, axis=1) / jnp.sum(mask, axis=1) * advantages)

    grads = jax.jit(jax.grad(loss))(params)
    layers = [leaf for layer in grads["layers"] for leaf in layer.values()]
    return [np.asarray(leaf) for leaf in (grads["embedding"], grads["norm"], *layers)]


def _rms(x: Any) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def name_peer(program: str, threads: int) -> str:
    """Return the name of an implementation other than simlab."""
    return f"{program}, {threads} {'thread' if threads == 1 else 'threads'}"


def peers(recipe: Recipe, params: Params) -> tuple[list[Peer], str]:
    """Return the reference on one thread and on all, or the reason why there is none."""
    try:
        return [Peer(threads, recipe, params) for threads in THREADS], ""
    except ImportError as error:
        return [], f"not installed: {error.name}; pip install 'simlab[peers]'"


def trl_steps(recipe: Recipe, params: Params) -> dict[str, float]:
    """Milliseconds of the fastest step of TRL's trainer by thread count; nothing if TRL is not installed.

    TRL runs in its own process, so its steps are timed after those of simlab, not interleaved with them.
    """
    python = find_interpreter("trl")
    if not python.exists():
        return {}
    prompts = np.asarray(recipe.task.prompts(jax.random.key(2), 64))
    milliseconds = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = save_checkpoint(Path(folder, "checkpoint"), recipe.model, params)
        settings = {
            "checkpoint": str(checkpoint),
            "texts": ["".join(CHARACTERS[token] for token in prompt) for prompt in prompts],
            "prompts": recipe.prompts_per_step,
            "group_size": recipe.group_size,
            "minibatches": recipe.minibatches,
            "response_length": int(recipe.task.response_length),
            "steps": 12,
        }
        for threads in THREADS:
            file = Path(folder, "settings.json")
            file.write_text(json.dumps(settings | {"threads": threads}))
            script = Path(__file__).with_name("step_speed_trl.py")
            done = subprocess.run([python, script, file], capture_output=True, text=True, check=True)
            milliseconds[name_peer("trl", threads)] = 1e3 * min(json.loads(done.stdout.splitlines()[-1]))
    return milliseconds


def stage_rows(cases: Cases, ms: np.ndarray, least: dict[str, float]) -> list[dict]:
    """Return rows by implementation and stage; `least` is the time of the products of a stage."""
    by_name: dict[str, dict[str, float]] = {"floor": least}
    for (name, stage), time_taken in zip(cases, ms, strict=True):
        by_name.setdefault(name, {})[stage] = float(time_taken)
    for times in by_name.values():
        times.setdefault("updates", times["step"] - times["rollout"] - times["score"])
    return [
        _row(name, stage, times[stage], times["step"], least)
        for name, times in by_name.items()
        for stage in least
    ]


def _row(name: str, stage: str, ms: float, step_ms: float, least: dict[str, float]) -> dict:
    rates = {"ms": ms, "floors": ms / least[stage], "steps_per_s": 1e3 / step_ms}
    return {"implementation": name, "stage": stage, **rates}


def ratios(rows: list[dict]) -> dict[str, float]:
    """Return the ratios of `LIMITS`."""
    ms = {(row["implementation"], row["stage"]): row["ms"] for row in rows}
    step = ms["emulated", "step"]
    ratios = {
        "step / floor": step / ms["floor", "step"],
        "rollout / floor": ms["emulated", "rollout"] / ms["floor", "rollout"],
        "emulated / float32": step / ms["float32", "step"],
    }
    for peer in ("pytorch", "trl"):
        times = [t for (name, stage), t in ms.items() if name.startswith(peer) and stage == "step"]
        if times:
            ratios[f"{peer} / emulated"] = min(times) / step
    return ratios


def run(run: ExperimentContext) -> None:
    (seed,) = run.seeds([0])
    rounds = 2 if run.smoke else 40
    names = ("float32", "emulated") if run.smoke else tuple(VARIANTS)
    recipe = recipe_of(VARIANTS["emulated"][0], run.smoke)
    params = init_params(jax.random.key(seed), recipe.model)
    run.configure(variants=VARIANTS, limits=LIMITS, rounds=rounds, model=asdict(recipe.model))
    cases: Cases = {}
    for name in run.track(names, "compile"):
        cases |= simlab_cases(name, recipe_of(VARIANTS[name][0], run.smoke), params)
    available, absent = ([], "not part of a smoke run") if run.smoke else peers(recipe, params)
    for peer in available:
        cases |= peer.cases()
    stages = step_floor.by_stage(recipe, recipe.task.prompts(jax.random.key(0), 1).shape[1])
    products = list(dict.fromkeys(product for counts in stages.values() for product in counts))
    calls = [*cases.values(), *map(timed_call, products)]
    ms = 1e3 * interleave(run, calls, time_call, rounds, seed).min(axis=0)
    one = dict(zip(products, ms[len(cases) :] / SIDE_BY_SIDE, strict=True))
    least = {stage: float(sum(one[p] * n for p, n in counts.items())) for stage, counts in stages.items()}
    rows = stage_rows(cases, ms[: len(cases)], least)
    for name, step in ({} if run.smoke else trl_steps(recipe, params)).items():
        rows.append(_row(name, "step", step, step, least))
    run.table("stages", rows)
    agreed = [row for peer in available for row in peer.agreement(params)]
    run.table("engines", measure_engines(run))
    run.table("agreement", agreed or [{"quantity": absent, "difference": np.nan, "bound": np.nan}])
    for name, ratio in ratios(rows).items():
        bound = "at least" if name.startswith(("pytorch", "trl")) else "at most"
        run.report(f"{name}: {ratio:.2f} ({bound} {LIMITS[name]} wanted)")
    wrong = [row["quantity"] for row in agreed if not row["difference"] <= row["bound"]]
    if wrong:
        raise RuntimeError(f"the reference computes something else: {'; '.join(wrong)}")


EXPERIMENT = Experiment(
    name="bench_step",
    question="How fast is one training step, against its products, the same step in PyTorch, and TRL's?",
    decision_rule="Fast enough if, in one run (least times), the step of the flagship's recipe under "
    f"f32/fp8-s4-truncated takes at most {LIMITS['step / floor']} times its arithmetic floor and its "
    f"rollout {LIMITS['rollout / floor']} times, the step at most {LIMITS['emulated / float32']} times that "
    f"of f32/f32, compiled PyTorch at least {LIMITS['pytorch / emulated']} times as long, on its best "
    "number of threads and with log-probabilities and gradients equal to ours within the table's bounds, and "
    f"TRL's GRPOTrainer in float32 at least {LIMITS['trl / emulated']} times as long.",
    run=run,
    minutes=6.0,
)
