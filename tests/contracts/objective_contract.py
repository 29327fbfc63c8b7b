"""What every objective has to keep, as functions to run on any of them: `check_contract(objective)`."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from simlab.objectives import Objective, TokenBatch, objective_value
from simlab.objectives.advantages import Gae, reward
from simlab.objectives.covariance import ClipCov, KlCov
from simlab.objectives.token_baseline import OptimalTokenBaseline
from simlab.objectives.weighted_likelihood import Dro
from tests.tolerances import assert_exact

GROUPS, GROUP_SIZE, TOKENS = 2, 4, 6
VOCABULARY = ("logp_vocabulary", "logp_infer_vocabulary")

# (value, coefficients) of a batch.
Evaluate = Callable[[TokenBatch], tuple[jax.Array, jax.Array]]


def ordinary_batch(seed: int = 0) -> TokenBatch:
    """Ragged lengths, both signs of the advantage, ratios on both sides of the usual clips."""
    rng = np.random.default_rng(seed)
    shape = (GROUPS * GROUP_SIZE, TOKENS)
    logp_train = -1.2 - rng.exponential(1.0, shape)
    lengths = np.array([TOKENS, 1, *rng.integers(2, TOKENS + 1, shape[0] - 2)])

    # Per group two responses that every mask keeps, one that only the loose ones keep, one that none does.
    mismatch = np.tile([1e-4, 1e-4, 0.02, 0.3], GROUPS)[:, None]

    def single(x):
        return jnp.asarray(x, jnp.float32)

    return TokenBatch(
        logp=single(logp_train + 0.3 * rng.normal(size=shape)),
        logp_train=single(logp_train),
        logp_infer=single(logp_train + mismatch * rng.normal(size=shape)),
        rewards=single([1, 0, 0, 1, 0.3, 0.1, 0, 0.7]),
        mask=jnp.asarray(np.arange(TOKENS) < lengths[:, None]),
        group_size=GROUP_SIZE,
        key=jax.random.key(seed),
        values=single(rng.normal(0.5, 0.3, shape)),
        **vocabulary_columns(rng, shape),
    )


def vocabulary_columns(rng: np.random.Generator, shape: tuple[int, int]) -> dict[str, jax.Array]:
    """Draw log-probabilities of three tokens under both engines."""
    logits = rng.normal(size=(2, *shape, 3))
    policy, sampler = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32))
    return {"logp_vocabulary": policy, "logp_infer_vocabulary": sampler}


def equal_rewards(batch: TokenBatch) -> TokenBatch:
    """The same reward everywhere: there is nothing to compare."""
    return replace(batch, rewards=jnp.full_like(batch.rewards, 0.1))


def no_tokens(batch: TokenBatch) -> TokenBatch:
    """One response of length zero, and one group without any token."""
    return replace(batch, mask=batch.mask.at[1].set(False).at[GROUP_SIZE:].set(False))


def far_ratios(batch: TokenBatch) -> TokenBatch:
    """Log ratios of +-100 under theta and between the engines."""
    sign = jnp.where(jnp.arange(TOKENS) % 2 == 0, 100.0, -100.0)
    logp = batch.logp_train + jnp.where(
        jnp.arange(batch.logp.shape[0])[:, None] % 3 == 0, sign[None, :], -sign[None, :]
    )
    return replace(batch, logp=logp.at[2].add(200.0), logp_infer=batch.logp_train - sign[None, :])


def one_survivor(batch: TokenBatch) -> TokenBatch:
    """Engines agree on one response of each group and disagree wildly on the others."""
    first = jnp.arange(batch.logp.shape[0])[:, None] % GROUP_SIZE == 0
    return replace(batch, logp_infer=batch.logp_train - jnp.where(first, 0.0, 5.0))


EDGES = {f.__name__: f for f in (equal_rewards, no_tokens, far_ratios, one_survivor)}


def evaluator(objective: Objective | str) -> Evaluate:
    """Value and coefficients of one objective in one pass, not compiled."""

    def evaluate(batch: TokenBatch) -> tuple[jax.Array, jax.Array]:
        def value(logp: jax.Array) -> jax.Array:
            return objective_value(objective, replace(batch, logp=logp))

        return jax.value_and_grad(value)(batch.logp)

    return evaluate


def assert_rounding(actual, expected) -> None:
    """ulp(k) of the batch's scale, k = 2 (32 + 48): what two orders of the same float32 work can differ by.

    A term is a product of at most 32 results that are each off by half an ulp, and a sum runs over at most
    48 tokens; both programs err. The terms are of order one before they are averaged, so the scale of a value
    is 1 + sum |c|, that of a coefficient the largest one (differences of weights cancel inside it).
    """
    k = 2 * (32 + GROUPS * GROUP_SIZE * TOKENS)
    (value, coefficients), (value_0, coefficients_0) = actual, expected
    unit = 2.0**-24
    largest = np.abs(coefficients_0).max(initial=0.0)
    np.testing.assert_array_less(np.abs(coefficients - coefficients_0), k * unit * largest + 1e-30)
    assert abs(value - value_0) <= k * unit * (1 + np.abs(coefficients_0).sum())


def check_finite(evaluate: Evaluate) -> None:
    """Finite values and gradients at the edges, zero gradient at padding."""
    batch = ordinary_batch()
    for name, edge in {"ordinary": lambda x: x, **EDGES}.items():
        edged = edge(batch)
        value, coefficients = evaluate(edged)
        assert np.isfinite(value), name
        assert np.isfinite(coefficients).all(), name
        assert (np.asarray(coefficients)[~np.asarray(edged.mask)] == 0).all(), name


def check_learns(evaluate: Evaluate) -> None:
    """The ordinary batch gives some token a coefficient: without it every other check is empty."""
    assert np.abs(evaluate(ordinary_batch())[1]).max() > 0


def check_padding(evaluate: Evaluate) -> None:
    """Nothing at padded positions matters, not one bit of it, NaN and infinities included."""
    batch = ordinary_batch()
    expected = evaluate(batch)
    for garbage in (jnp.nan, jnp.inf, -jnp.inf, -1e30):
        fields = {
            name: jnp.where(batch.mask, getattr(batch, name), garbage)
            for name in ("logp", "logp_train", "logp_infer", "values")
        }
        fields |= {
            name: jnp.where(batch.mask[..., None], getattr(batch, name), garbage) for name in VOCABULARY
        }
        actual = evaluate(replace(batch, **fields))
        assert_exact(np.ravel(actual[0]), np.ravel(expected[0]))
        assert_exact(actual[1], expected[1])


def check_permutation(evaluate: Evaluate) -> None:
    """Reordering the groups reorders the coefficients."""
    batch = ordinary_batch()
    order = np.roll(np.arange(GROUPS * GROUP_SIZE), GROUP_SIZE)
    value, coefficients = evaluate(batch)
    names = ("logp", "logp_train", "logp_infer", "rewards", "mask", "values", *VOCABULARY)
    assert_rounding(
        evaluate(replace(batch, **{name: getattr(batch, name)[order] for name in names})),
        (value, coefficients[order]),
    )


def check_equal_rewards(evaluate: Evaluate) -> None:
    """Nothing is learnt from groups whose rewards are all equal: exactly zero."""
    value, coefficients = evaluate(equal_rewards(ordinary_batch()))
    assert value == 0
    assert (np.asarray(coefficients) == 0).all()


def check_compiled(eager: Evaluate, compiled: Evaluate) -> None:
    """Eager and compiled agree to rounding: XLA contracts a * b + c under jit, so not to the bit."""
    batch = ordinary_batch()
    assert_rounding(compiled(batch), eager(batch))


def check_vmap(evaluate: Evaluate, vmapped: Evaluate) -> None:
    """`vmap` over batches agrees with a loop to rounding: sums are ordered by shape."""
    batches = [ordinary_batch(seed) for seed in range(2)]
    together = vmapped(jax.tree.map(lambda *x: jnp.stack(x), *batches))
    for i, batch in enumerate(batches):
        assert_rounding((together[0][i], together[1][i]), evaluate(batch))


def compares_in_group(objective: Objective) -> bool:
    """Whether equal rewards must give zero.

    Not for the bare reward, a critic or the optimal token baseline, nor with a penalty beside the advantage.
    """
    if objective.regularizers or isinstance(objective.surrogate, Dro | KlCov):
        return False
    return objective.advantage is not reward and not isinstance(
        objective.advantage, Gae | OptimalTokenBaseline
    )


def draws_noise(objective: Objective) -> bool:
    """Whether weights are tied to positions by `batch.key`, so that reordering groups changes the draw."""
    return "key" in getattr(objective.distortion, "needs", ()) or isinstance(objective.surrogate, ClipCov)


def check_contract(objective: Objective) -> list[str]:
    """Run every check that applies to `objective`; return their names, or raise at the first that fails."""
    eager = evaluator(objective)
    compiled = jax.jit(eager)
    checks = [check_finite, check_learns, check_padding]
    checks += [check_permutation] if not draws_noise(objective) else []
    checks += [check_equal_rewards] if compares_in_group(objective) else []
    for check in checks:
        check(compiled)
    check_compiled(eager, compiled)
    check_vmap(compiled, jax.jit(jax.vmap(eager)))
    return [check.__name__ for check in (*checks, check_compiled, check_vmap)]
