"""Test which numerical pitfalls of XLA hold on this machine.

Each pitfall is a rewrite or a rule of the compiler that would silently change an emulated format.
simlab works around all of them.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Pitfall:
    """A pitfall: whether it holds on this machine, the observation, and the workaround of simlab."""

    pitfall: str
    holds: bool
    observed: str
    workaround: str


def check_pitfalls() -> list[Pitfall]:
    """Test every pitfall; takes a few seconds."""
    return [check() for check in CHECKS]


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def constant_magic_disappears() -> Pitfall:
    """Test whether `(x + C) - C` with a literal C compiles to a copy; in float arithmetic it rounds."""
    x = _random(4096)
    num_unrounded = int((np.asarray(jax.jit(lambda x: (x + 98304.0) - 98304.0)(x)) == x).sum())
    return Pitfall(
        "a constant magic number is optimised away",
        num_unrounded == x.size,
        f"{num_unrounded} of {x.size} values left unrounded",
        "magic numbers depend on data",
    )


def product_and_sum_fuse() -> Pitfall:
    """Test whether `a * b + c` under jit rounds once instead of twice."""
    a, b, c = _random(3, 4096)
    separate = a * b + c
    fused = int((np.asarray(jax.jit(lambda a, b, c: a * b + c)(a, b, c)) != separate).sum())
    return Pitfall(
        "a product and a sum become one FMA",
        fused > 0,
        f"{fused} of {a.size} sums differ from two roundings",
        "a real rounding step between them",
    )


def division_by_scalar_becomes_product() -> Pitfall:
    """Test whether `x / s` with one s for many x becomes `x * (1 / s)`."""
    x, s = _random(4096), np.float32(3.7)
    wrong = int((np.asarray(jax.jit(lambda x: x / 3.7)(x)) != x / s).sum())
    return Pitfall(
        "division by a scale becomes a product with its reciprocal",
        wrong > 0,
        f"{wrong} of {x.size} quotients differ from IEEE division",
        "the divisor depends on the dividend",
    )


def two_divisions_become_one() -> Pitfall:
    """Test whether `a / b / c` becomes `a / (b * c)`, which is rounded once less."""
    a, b, c = np.abs(_random(3, 4096)) + np.float32(0.1)
    wrong = int((np.asarray(jax.jit(lambda a, b, c: a / b / c)(a, b, c)) != a / b / c).sum())
    return Pitfall(
        "a quotient of a quotient becomes one division by a product",
        wrong > 0,
        f"{wrong} of {a.size} quotients differ from two divisions",
        "integer operations on the dividend hide it",
    )


def exp2_inexact() -> Pitfall:
    """Test whether `exp2(n)` for an integer n is inexact; it should be a power of two."""
    n = np.arange(-126, 128, dtype=np.float32)
    wrong = int((np.asarray(jax.jit(jnp.exp2)(n)) != np.ldexp(np.float32(1), n.astype(int))).sum())
    return Pitfall(
        "exp2 of an integer is not a power of two",
        wrong > 0,
        f"{wrong} of {n.size} exponents wrong",
        "scales are built from exponent bits",
    )


def subnormals_flushed() -> Pitfall:
    """Test whether float32 subnormals are read or written as zero."""
    x = np.asarray([1e-40, -3e-42], np.float32)
    flushed = int((np.asarray(jax.jit(lambda x: x * jnp.float32(1.5))(x)) == 0).sum())
    return Pitfall(
        "subnormals are flushed to zero",
        flushed > 0,
        f"{flushed} of {x.size} products became 0",
        "integer arithmetic where subnormals matter",
    )


def cast_rounds_cotangent() -> Pitfall:
    """Test whether the gradient of a float8 round trip is rounded, and overflows, like the value."""
    gradient = jax.grad(lambda x: 1000.0 * x.astype(jnp.float8_e4m3fn).astype(jnp.float32))(1.0)
    return Pitfall(
        "a cast to float8 and back also rounds the gradient",
        float(gradient) != 1000.0,
        f"1000 became {float(gradient)}",
        "explicit straight-through rules",
    )


def cast_does_not_saturate() -> Pitfall:
    """Test whether `astype(float8_e4m3fn)` beyond 448 gives NaN, where torch saturates."""
    value = float(jnp.float32(1e6).astype(jnp.float8_e4m3fn).astype(jnp.float32))
    return Pitfall(
        "the float8 cast overflows to NaN",
        bool(np.isnan(value)),
        f"1e6 became {value}",
        "overflow is an argument",
    )


def float6_fails() -> Pitfall:
    """Test, in a separate process, whether jit on a float6 array fails or kills the process."""
    code = "import jax, jax.numpy as n; jax.jit(lambda x: x.astype(n.float6_e2m3fn))(n.ones(4))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    return Pitfall(
        "jit on float6 arrays fails",
        done.returncode != 0,
        f"exit status {done.returncode}",
        "float32 carriers",
    )


def max_loses_nan() -> Pitfall:
    """Test whether the maximum of an array with a NaN is a number."""
    x = _random(64, 4096)
    x[::2, 1234] = np.nan
    lost = int(np.isfinite(np.asarray(jax.jit(lambda x: jnp.max(jnp.abs(x), axis=-1))(x))[::2]).sum())
    return Pitfall(
        "the maximum of a row loses a NaN",
        lost > 0,
        f"{lost} of 32 rows with a NaN have a finite maximum",
        "an integer maximum of the bits",
    )


def fresh_outputs_slow() -> Pitfall:
    """Test whether a large output in fresh memory costs page faults; a donated buffer does not."""
    fresh = _seconds(jax.jit(lambda x: x + 1.0), donate=False)
    donated = _seconds(jax.jit(lambda x: x + 1.0, donate_argnums=0), donate=True)
    return Pitfall(
        "fresh large outputs are much slower than donated ones",
        fresh > 2 * donated,
        f"{fresh / donated:.1f} times the time of x + 1 on 2^22 values",
        "donated buffers in hot loops",
    )


def _seconds(step: Callable[[jax.Array], jax.Array], donate: bool) -> float:
    x = jnp.zeros(1 << 22, jnp.float32)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        y = jax.block_until_ready(step(x))
        times.append(time.perf_counter() - start)
        x = y if donate else x
    return float(np.median(times[2:]))


def product_depends_on_shape() -> Pitfall:
    """Test whether a row of a matrix product depends on the number of rows."""
    x, w = _random(64, 512), _random(512, 48)
    dot = jax.jit(jnp.dot)
    differ = int((np.asarray(dot(x, w))[:7] != np.asarray(dot(x[:7], w))).sum())
    return Pitfall(
        "a matrix product depends on the batch size",
        differ > 0,
        f"{differ} of {7 * 48} entries differ between 7 and 64 rows",
        "exact or fixed-order accumulation",
    )


def threefry_slow() -> Pitfall:
    """Test whether random bits cost far more than the rounding that uses them."""
    key = jax.random.key(0)
    bits = jax.jit(lambda x: x + jax.random.bits(key, x.shape).astype(jnp.float32))
    ratio = _seconds(bits, donate=False) / _seconds(jax.jit(lambda x: x + 1.0), donate=False)
    return Pitfall(
        "the default generator dominates stochastic rounding",
        ratio > 3,
        f"{ratio:.0f} times x + 1",
        "a counter hash inside the kernel",
    )


def product_in_low_precision() -> Pitfall:
    """Test whether a float32 matrix product silently runs in TF32 or BF16 on an accelerator."""
    x, w = _random(64, 512), _random(512, 64)
    error = np.abs(
        np.asarray(jax.jit(jnp.dot)(x, w), np.float64) - x.astype(np.float64) @ w.astype(np.float64)
    )
    # |error| <= K eps sum |x||w| for float32 sums of K terms; TF32 is 2^13 times coarser.
    bound = 512 * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(w))
    return Pitfall(
        "a float32 product runs in a shorter format",
        bool((error > bound).any()),
        f"largest error {(error / bound).max():.2g} of the float32 bound",
        "precision=HIGHEST on every product",
    )


def classes_are_one_tree() -> Pitfall:
    """Test whether two dataclasses of one shape are one pytree, so that jit reuses compiled functions."""
    one, other = (make_dataclass(name, ["x"], frozen=True) for name in ("One", "Other"))
    for each in (one, other):
        jax.tree_util.register_dataclass(each, ["x"], [])
    equal = jax.tree.structure(one(1.0)) == jax.tree.structure(other(1.0))
    return Pitfall(
        "two dataclasses of one shape are equal as trees",
        equal,
        f"the trees of two classes are {'equal' if equal else 'different'}",
        "the class is part of the tree",
    )


CHECKS: tuple[Callable[[], Pitfall], ...] = (
    constant_magic_disappears,
    product_and_sum_fuse,
    division_by_scalar_becomes_product,
    two_divisions_become_one,
    exp2_inexact,
    subnormals_flushed,
    cast_rounds_cotangent,
    cast_does_not_saturate,
    float6_fails,
    max_loses_nan,
    fresh_outputs_slow,
    product_depends_on_shape,
    threefry_slow,
    product_in_low_precision,
    classes_are_one_tree,
)
