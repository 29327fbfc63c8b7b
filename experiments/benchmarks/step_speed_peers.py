"""The step in PyTorch: timed calls, and what it computes against simlab."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.timing import Call
from simlab.core.plugins import import_module
from simlab.engines import find_pair
from simlab.models.config import MODELS, TransformerConfig
from simlab.models.parameters import Params
from simlab.models.transformer import response_logps
from simlab.objectives import get_objective
from simlab.rollout import response_mask
from simlab.tasks import EOS_TOKEN_ID, TASKS
from simlab.training.recipe import Recipe

Cases = dict[tuple[str, str], Call]
"""Timed calls by implementation and stage; `updates` of simlab are its step minus rollout and score."""
EMULATED = "f32/fp8-s4-truncated"
"""The engine pair of the timed step."""
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
