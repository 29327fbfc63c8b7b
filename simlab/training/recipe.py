"""The recipe of a run, and the state that it carries from step to step."""

from dataclasses import field
from typing import Annotated

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, PyTree

from simlab.core.catalog import shorten, suggest
from simlab.core.pytree import Scalar, pytree, static
from simlab.core.ranges import COUNT, NOT_NEGATIVE, Range
from simlab.engines.engine import Engine, EnginePair
from simlab.engines.site import FLOAT32_SITE, Site
from simlab.metrics.catalog import BINNED_METRICS
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params, init_params
from simlab.models.transformer import SCANNED_LAYERS
from simlab.objectives import Objective
from simlab.objectives.advantages import Gae, gae
from simlab.rollout.sampling import SamplingParams
from simlab.tasks import VOCABULARY_SIZE, Task
from simlab.training.critic import Critic, CriticState
from simlab.training.measure import STEP_NUMBERS, choose_metrics
from simlab.training.optimizer import AdamW
from simlab.training.schedules import Constant, MismatchTriggered, Schedule
from simlab.training.staleness import init_past_params

OLD_LOG_PROBS = ("train", "rollout")


@pytree(kw_only=True)
class Recipe:
    """All settings of a run except its seed and initial parameters.

    The fields before `task` are data: all their numbers (formats of the engines, clip ranges, learning rate,
    temperature, `entropy_coeff`, `kl_loss_coef`) may be traced, stacked and mapped over. The others are
    static. One step samples `prompts_per_step` x `group_size` responses and makes `minibatches` updates,
    each on complete groups. A coefficient that is None leaves its term out of the compiled function.

    - `gradient_site`: how each leaf of the policy's gradient is rounded before its norm is clipped.
    - `critic`: required if the advantage is `gae`, otherwise forbidden. Its `gamma` and `lam` are used.
    - `staleness`: age, in steps, of the parameters that sample the rollout, see `staleness.py`.
    - `old_log_probs`: source of pi_train at theta_old. `train`: scores of the training engine. `rollout`:
      log-probs of the inference engine (verl's bypass mode). Bypass mode hides the mismatch from rho and
      leaves it in the gradient, where the PPO ratio starts at pi_train / pi_infer instead of 1. Unlike verl,
      simlab still scores the rollout, for the metrics.
    - `gradient_checkpointing`: updates scan over the layers and recompute each layer in the backward pass.
      Only one layer is compiled and keeps its activations; results may differ by rounding. For models with
      at least `SCANNED_LAYERS` layers.
    - `metrics`: names in `simlab.metrics.METRICS` to record instead of `STEP_METRICS`, besides
      `rms_log_rho` and `STEP_NUMBERS`, which every run records (see `measure.py`). Other metrics are not in
      the compiled function.

    Raises:
        ValueError: For an unknown `old_log_probs` or metric, sizes that do not fit together, and a critic or
            an advantage `gae` without the other.

    Reference: vexact V7; verl algorithm.rollout_correction.bypass_mode.
    """

    engines: EnginePair
    objective: Objective
    optimizer: AdamW = field(default_factory=AdamW)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    schedule: Schedule = field(default_factory=Constant)
    entropy_coeff: Annotated[Scalar | None, NOT_NEGATIVE] = None
    kl_loss_coef: Annotated[Scalar | None, NOT_NEGATIVE] = None
    gradient_site: Site = FLOAT32_SITE
    critic: Critic | None = None
    task: Task = static()
    model: TransformerConfig = static()
    prompts_per_step: Annotated[int, COUNT] = static(default=8)
    group_size: Annotated[int, COUNT] = static(default=16)
    minibatches: Annotated[int, COUNT] = static(default=4)
    staleness: Annotated[int, Range(0, 1000)] = static(default=0)
    old_log_probs: str = static(default="train")
    gradient_checkpointing: bool = static(default=False)
    metrics: tuple[str, ...] | None = static(default=None)

    def __post_init__(self):
        """Reject invalid values."""
        if self.minibatches < 1 or self.prompts_per_step % self.minibatches:
            raise ValueError(
                f"minibatches must divide prompts_per_step, got {self.minibatches} and "
                f"{self.prompts_per_step}."
            )
        if self.staleness < 0:
            raise ValueError(f"staleness must be at least 0, got {self.staleness}.")
        if self.old_log_probs not in OLD_LOG_PROBS:
            allowed = " or ".join(OLD_LOG_PROBS)
            raise ValueError(f"old_log_probs must be {allowed}, got {shorten(self.old_log_probs)}.")
        self._check_critic()
        self._check_metrics()
        if self.gradient_checkpointing and self.model.num_hidden_layers < SCANNED_LAYERS:
            raise ValueError(
                f"gradient_checkpointing must be false for models of fewer than {SCANNED_LAYERS} layers, got "
                f"true with model.num_hidden_layers = {self.model.num_hidden_layers}."
            )
        if self.model.vocab_size < VOCABULARY_SIZE:
            raise ValueError(
                f"model.vocab_size must be at least {VOCABULARY_SIZE}, got {self.model.vocab_size}."
            )

    def _check_metrics(self) -> None:
        recorded = choose_metrics(self.metrics)
        if isinstance(self.schedule, MismatchTriggered):
            scalars = [name for name in (*recorded, *STEP_NUMBERS) if name not in BINNED_METRICS]
            if self.schedule.metric not in scalars:
                hint, allowed = suggest(self.schedule.metric, scalars)
                raise ValueError(
                    f"schedule.metric must be a number that the run records, got "
                    f"{shorten(self.schedule.metric)}; {hint}allowed: {', '.join(allowed)}"
                )

    def _check_critic(self) -> None:
        # `getattr`: a tree of vmap axes may hold no objective.
        estimator = getattr(self.objective, "advantage", None)
        if isinstance(estimator, Gae) and estimator != gae:
            raise ValueError(
                f"objective.advantage must be gae with its defaults, got {estimator}. "
                f"Set critic.gamma and critic.lam instead."
            )
        if isinstance(estimator, Gae) != (self.critic is not None) and estimator is not None:
            raise ValueError(
                "critic must be given with the advantage gae, got none. Set critic = {}."
                if self.critic is None
                else "critic must be none without the advantage gae, got a critic. Remove critic, or choose "
                "an objective with that advantage, such as ppo."
            )


@pytree(kw_only=True)
class SamplingRecipe:
    """The fields that a rollout reads; runs whose recipes differ elsewhere share its compiled function.

    `vocabulary`: whether the trajectory has the log-probabilities of all tokens.
    """

    engine: Engine
    sampling: SamplingParams = field(default_factory=SamplingParams)
    task: Task = static()
    model: TransformerConfig = static()
    prompts_per_step: int = static()
    group_size: int = static()
    vocabulary: bool = static(default=False)


@pytree
class TrainState:
    """State of one run between two steps. A part that the recipe does not need is None.

    - `params`, `opt_state`: parameters and optimizer state of the policy.
    - `step`: number of completed steps, int32.
    - `key`: random key of the run. It never changes; each step derives its own streams from `step`.
    - `reference`: initial parameters, for the KL term.
    - `schedule_state`: state of a schedule that reacts to the run.
    - `critic`: parameters and optimizer state of the critic.
    - `past_params`: parameters of the last `staleness` steps, [staleness, ...] per leaf.
    """

    params: Params
    opt_state: PyTree
    step: Int[Array, ""]
    key: Array
    reference: Params | None = None
    schedule_state: PyTree = None
    critic: CriticState | None = None
    past_params: Params | None = None


def state_shapes(recipe: Recipe) -> TrainState:
    """Return shapes and dtypes of the state of a run without allocating it."""

    def first() -> TrainState:
        key = jax.random.key(0)
        return initial_state(recipe, init_params(key, recipe.model), key)

    return jax.eval_shape(first)


def initial_state(recipe: Recipe, params: Params, key: Array) -> TrainState:
    """Return the state before the first step from `params`, in arrays of its own: the loop donates them."""

    def copy(tree: PyTree) -> PyTree:
        return jax.tree.map(jnp.copy, tree)

    return TrainState(
        params=copy(params),
        opt_state=recipe.optimizer.init(params),
        step=jnp.zeros((), jnp.int32),
        key=copy(key),
        reference=copy(params) if recipe.kl_loss_coef is not None else None,
        schedule_state=copy(recipe.schedule.init()),
        critic=None if recipe.critic is None else recipe.critic.init(params),
        past_params=init_past_params(params, recipe.staleness),
    )
