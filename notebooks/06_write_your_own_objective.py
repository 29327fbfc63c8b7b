# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Write your own objective
#
# Read this first: `simlab/objectives/plain_grpo.py`, GRPO in plain JAX.
#
# An objective in simlab is a record of small functions. Per token it is
#
# $$A \times u(r, A) \times \text{correction}(\rho) \times \text{distortion}$$
#
# summed or averaged over the tokens that no mask dropped. $r = \pi_\theta / \pi_{\theta_{old}}$ is the PPO
# ratio, $\rho = \pi_{train} / \pi_{infer}$ the IS ratio. The gradient depends on the objective only through
# its derivative with respect to the log-probabilities, one number per token: the *token coefficient*.

# %%
import os
import tempfile
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import simlab
from simlab.core.pytree import Scalar, pytree
from simlab.objectives import (
    OBJECTIVE_MODIFIERS,
    OBJECTIVES,
    TokenBatch,
    objective_value,
    override_names,
    token_coefficients,
)
from simlab.objectives.ratios import Surrogate, token_ratio

SMOKE = os.environ.get("SIMLAB_SMOKE") == "1"
OUT = tempfile.mkdtemp() if SMOKE else "runs/own_objective"

# %% [markdown]
# ## Ten lines
#
# A clip switches the gradient of a token on or off. We replace it by a parabola:
# $u = r - \mathrm{sign}(A)\,(r-1)^2 / 2w$. Its slope is zero where GRPO's clip begins; beyond that point the
# gradient moves the token back.


# %%
@pytree
class Parabola(Surrogate):
    """A quadratic penalty on leaving r = 1, instead of a clip."""

    width: Scalar = 0.2

    def __call__(self, batch, advantages):
        ratio = token_ratio(batch)
        return ratio - jnp.sign(advantages) * (ratio - 1) ** 2 / (2 * self.width)


parabola = replace(OBJECTIVES["grpo"], surrogate=Parabola())

# %% [markdown]
# The objective is complete. Fields of the record can be overridden by name and may be traced. Everything else
# is inherited from GRPO and can be replaced in the same way.

# %%
print(override_names(parabola))

# %% [markdown]
# ## Its coefficients
#
# Two answers to one prompt: the first is correct, the second is wrong. In both, the probability of the first
# token rose by 30%, the second did not change, and the third fell by 30%.

# %%
ratios = jnp.asarray([[1.3, 1.0, 0.7]] * 2)
logp_train = jnp.full((2, 3), -1.0)
batch = TokenBatch(
    logp=logp_train + jnp.log(ratios),
    logp_train=logp_train,
    logp_infer=logp_train - 0.1,
    rewards=jnp.asarray([1.0, 0.0]),
    mask=jnp.ones((2, 3)),
    group_size=2,
)
with np.printoptions(precision=3, suppress=True):
    for name, objective in {"grpo": "grpo", "grpo_fix": "grpo_fix", "parabola": parabola}.items():
        print(f"{name:9s} {np.asarray(token_coefficients(objective, batch))}".replace("\n", "\n" + 10 * " "))

# %% [markdown]
# A column is a token that both answers share. If a column does not sum to zero, training moves a token that
# carries no information about the correct answer (*cancel*, Eq. 75, 76). GRPO leaves a remainder in the first
# and third columns; the sign-free clip leaves none. The parabola leaves a larger remainder, because it also
# depends on the sign of the advantage.

# %%
slopes = np.linspace(-0.7, 0.7, 201)


def coefficient(objective, log_ratio, advantage):
    """The coefficient of a single token, its advantage given as the reward."""
    one = TokenBatch(
        jnp.full((1, 1), -1.0) + log_ratio,
        jnp.full((1, 1), -1.0),
        jnp.full((1, 1), -1.0),
        jnp.full(1, advantage),
        jnp.ones((1, 1)),
        1,
    )
    return token_coefficients(objective, one, advantage="reward", aggregation="token-sum")[0, 0]


figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), sharex=True, layout="constrained")
shown = {"grpo": "grpo", "grpo_fix": "grpo_fix", "cispo": "cispo", "sapo": "sapo", "parabola": parabola}
for axis, advantage in zip(axes, (1.0, -1.0), strict=True):
    for name, objective in shown.items():
        curve = jax.jit(jax.vmap(lambda x, o=objective, a=advantage: coefficient(o, x, a)))
        axis.plot(slopes, curve(jnp.asarray(slopes, jnp.float32)), label=name)
    axis.set(title=f"A = {advantage:+.0f}", xlabel="log r")
axes[0].set_ylabel("token coefficient")
axes[1].legend(frameon=False, fontsize="small")
plt.show()

# %% [markdown]
# ## Contract tests
#
# The test suite of the presets accepts any objective. It checks finite values at the edges (empty responses,
# log ratios of +-100, one survivor), independence of padding, exchangeable groups, zero gradient for equal
# rewards, and equal results under `jit` and `vmap`.

# %%
try:
    from tests.contracts.objective_contract import check_contract
except ImportError:
    print("The suite is part of the checkout: tests/contracts/objective_contract.py")
else:
    for check in check_contract(parabola):
        print("passed", check)

# %% [markdown]
# ## Corrections and sweeps
#
# The new objective accepts every IS correction, and its width can be swept in one compiled function.

# %%
corrected = replace(parabola, correction=OBJECTIVE_MODIFIERS["tis"].stage)
widths = jnp.asarray([0.05, 0.1, 0.2, 0.4])
values = jax.jit(jax.vmap(lambda width: objective_value(corrected, batch, width=width)))(widths)
for width, value in zip(widths, values, strict=True):
    print(f"width {width:.2f}: objective {value:+.4f}")

# %% [markdown]
# ## In a sweep
#
# A grid takes the record like the name of a built-in objective. Tasks, engines, schedules and formats work in
# the same way. Worker processes get the code of this notebook. The key of a run contains this code: if
# `Parabola` changes, its runs are computed again. In a file `mymodule.py` the record has the name
# `"mymodule:parabola"`, also in a TOML file.

# %%
small = {
    "task": {"name": "sort", "difficulty": 2, "train_size": 64, "held_out_size": 16},
    "model": "tiny-dense",
    "prompts_per_step": 2,
    "group_size": 4,
    "minibatches": 1,
    "steps": 2,
}
full = {"task": "add", "model": "tiny-llama", "warm_start": "add-tiny-llama-0", "steps": 60}
result = simlab.sweep(
    (small if SMOKE else full) | {"engines": "f32/f32", "infer_mantissa_bits": 2},
    {"objective": [corrected, "grpo+tis"], "seed": [0, 1]},
    OUT,
    runs_per_batch=2,
    workers=0 if SMOKE else None,
)
frame = result.frame()
print(frame.groupby("objective")[["reward", "rms_log_rho", "grad_norm"]].mean())
