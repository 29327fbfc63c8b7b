"""Warm starts: an initial policy trained on demonstrations, in float32."""

from collections.abc import Callable
from dataclasses import field, replace
from typing import Annotated

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, PyTree

from simlab.core.backend import compiler_options
from simlab.core.pytree import Scalar, pytree, static
from simlab.core.ranges import FRACTION, STEPS
from simlab.core.streams import stream
from simlab.engines import Engine
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params, init_params
from simlab.models.transformer import response_logps
from simlab.rollout.trajectory import response_mask
from simlab.tasks import EOS_TOKEN_ID, Task
from simlab.training.optimizer import AdamW
from simlab.training.schedules import Cosine


@pytree(kw_only=True)
class WarmStart:
    """Configure supervised training: `steps` (static) updates on `batch` (static) new demonstrations each.

    Every digit of a demonstration is replaced by a uniform one with probability `demo_error_rate`, so it is
    wrong with probability 0.9 `demo_error_rate`: that leaves headroom. The learning rate rises over
    `lr_warmup_steps` (static; None: a twentieth of `steps`), then falls along a cosine to the part
    `min_lr_ratio` of it. `train_size` (static) is the number of training prompts to demonstrate, so that runs
    on fewer begin equally; None means those of the task.
    """

    optimizer: AdamW = field(default_factory=lambda: AdamW(learning_rate=4e-3))
    demo_error_rate: Annotated[Scalar, FRACTION] = 0.05
    min_lr_ratio: Annotated[Scalar, FRACTION] = 0.1
    steps: Annotated[int, STEPS] = static(default=1200)
    batch: int = static(default=128)
    lr_warmup_steps: int | None = static(default=None)
    train_size: int | None = static(default=None)


def warm_start(
    task: Task, model: TransformerConfig, how: WarmStart, key: Array
) -> tuple[Params, Float[Array, " steps"]]:
    """Return parameters trained on demonstrations from `init_params`, and the losses [steps], nats per token.

    Args:
        task: prompts and demonstrations.
        model: shapes of the parameters.
        how: optimizer, number of updates, error rate.
        key: of initial parameters, prompts and demonstrations.
    """
    if how.train_size is not None:
        task = replace(task, train_size=how.train_size)
    params = init_params(stream(key, "init"), model)
    warmup_steps = how.steps // 20 if how.lr_warmup_steps is None else how.lr_warmup_steps
    schedule = Cosine(steps=how.steps, min_lr_ratio=how.min_lr_ratio, lr_warmup_steps=warmup_steps)

    def step(carry: tuple[Params, PyTree], number: Array) -> tuple[tuple[Params, PyTree], Array]:
        params, opt_state = carry
        key_step = jax.random.fold_in(stream(key, "demonstrations"), number)
        prompts = task.prompts(stream(key_step, "prompts"), how.batch)
        responses = task.demonstrations(stream(key_step, "responses"), prompts, how.demo_error_rate)
        loss, grads = jax.value_and_grad(_cross_entropy)(params, model, prompts, responses)
        return how.optimizer.update(grads, opt_state, params, schedule(number)), loss

    (params, _), losses = lax.scan(step, (params, how.optimizer.init(params)), jnp.arange(how.steps))
    return params, losses


def compile_warm_start() -> Callable[..., tuple[Params, Float[Array, " steps"]]]:
    """Return the compiled `warm_start`, with the options of training runs; task and model are static."""
    return jax.jit(warm_start, static_argnums=(0, 1), compiler_options=compiler_options())


def _cross_entropy(params: Params, model: TransformerConfig, prompts: Array, responses: Array) -> Array:
    logp = response_logps(params, model, Engine(), prompts, responses).logp
    mask = response_mask(responses, EOS_TOKEN_ID)
    return -jnp.sum(jnp.where(mask, logp, 0.0)) / jnp.sum(mask, dtype=jnp.float32)
