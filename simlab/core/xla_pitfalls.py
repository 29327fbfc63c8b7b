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


Observation = tuple[bool, str]
"""Whether a pitfall holds, and what shows it."""
Check = Callable[[], Observation]


def check_pitfalls() -> list[Pitfall]:
    """Test every pitfall; takes a few seconds."""
    return [Pitfall(name, *check(), workaround) for name, (check, workaround) in CHECKS.items()]


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def constant_magic_disappears() -> Observation:
    """Test whether `(x + C) - C` with a literal C compiles to a copy; in float arithmetic it rounds."""
    x = _random(4096)
    num_unrounded = int((np.asarray(jax.jit(lambda x: (x + 98304.0) - 98304.0)(x)) == x).sum())
    return num_unrounded == x.size, f"{num_unrounded} of {x.size} values left unrounded"


def product_and_sum_fuse() -> Observation:
    """Test whether `a * b + c` under jit rounds once instead of twice."""
    a, b, c = _random(3, 4096)
    separate = a * b + c
    fused = int((np.asarray(jax.jit(lambda a, b, c: a * b + c)(a, b, c)) != separate).sum())
    return fused > 0, f"{fused} of {a.size} sums differ from two roundings"


def division_by_scalar_becomes_product() -> Observation:
    """Test whether `x / s` with one s for many x becomes `x * (1 / s)`."""
    x, s = _random(4096), np.float32(3.7)
    wrong = int((np.asarray(jax.jit(lambda x: x / 3.7)(x)) != x / s).sum())
    return wrong > 0, f"{wrong} of {x.size} quotients differ from IEEE division"


def two_divisions_become_one() -> Observation:
    """Test whether `a / b / c` becomes `a / (b * c)`, which is rounded once less."""
    a, b, c = np.abs(_random(3, 4096)) + np.float32(0.1)
    wrong = int((np.asarray(jax.jit(lambda a, b, c: a / b / c)(a, b, c)) != a / b / c).sum())
    return wrong > 0, f"{wrong} of {a.size} quotients differ from two divisions"


def exp2_inexact() -> Observation:
    """Test whether `exp2(n)` for an integer n is inexact; it should be a power of two."""
    n = np.arange(-126, 128, dtype=np.float32)
    wrong = int((np.asarray(jax.jit(jnp.exp2)(n)) != np.ldexp(np.float32(1), n.astype(int))).sum())
    return wrong > 0, f"{wrong} of {n.size} exponents wrong"


def subnormals_flushed() -> Observation:
    """Test whether float32 subnormals are read or written as zero."""
    x = np.asarray([1e-40, -3e-42], np.float32)
    flushed = int((np.asarray(jax.jit(lambda x: x * jnp.float32(1.5))(x)) == 0).sum())
    return flushed > 0, f"{flushed} of {x.size} products became 0"


def cast_rounds_cotangent() -> Observation:
    """Test whether the gradient of a float8 round trip is rounded, and overflows, like the value."""
    gradient = jax.grad(lambda x: 1000.0 * x.astype(jnp.float8_e4m3fn).astype(jnp.float32))(1.0)
    return float(gradient) != 1000.0, f"1000 became {float(gradient)}"


def cast_does_not_saturate() -> Observation:
    """Test whether `astype(float8_e4m3fn)` beyond 448 gives NaN, where torch saturates."""
    value = float(jnp.float32(1e6).astype(jnp.float8_e4m3fn).astype(jnp.float32))
    return bool(np.isnan(value)), f"1e6 became {value}"


def float6_fails() -> Observation:
    """Test, in a separate process, whether jit on a float6 array fails or kills the process."""
    code = "import jax, jax.numpy as n; jax.jit(lambda x: x.astype(n.float6_e2m3fn))(n.ones(4))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    return done.returncode != 0, f"exit status {done.returncode}"


def max_loses_nan() -> Observation:
    """Test whether the maximum of an array with a NaN is a number."""
    x = _random(64, 4096)
    x[::2, 1234] = np.nan
    lost = int(np.isfinite(np.asarray(jax.jit(lambda x: jnp.max(jnp.abs(x), axis=-1))(x))[::2]).sum())
    return lost > 0, f"{lost} of 32 rows with a NaN have a finite maximum"


def fresh_outputs_slow() -> Observation:
    """Test whether a large output in fresh memory costs page faults; a donated buffer does not."""
    fresh = _seconds(jax.jit(lambda x: x + 1.0), donate=False)
    donated = _seconds(jax.jit(lambda x: x + 1.0, donate_argnums=0), donate=True)
    return fresh > 2 * donated, f"{fresh / donated:.1f} times the time of x + 1 on 2^22 values"


def _seconds(step: Callable[[jax.Array], jax.Array], donate: bool) -> float:
    x = jnp.zeros(1 << 22, jnp.float32)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        y = jax.block_until_ready(step(x))
        times.append(time.perf_counter() - start)
        x = y if donate else x
    return float(np.median(times[2:]))


def product_depends_on_shape() -> Observation:
    """Test whether a row of a matrix product depends on the number of rows."""
    x, w = _random(64, 512), _random(512, 48)
    dot = jax.jit(jnp.dot)
    differ = int((np.asarray(dot(x, w))[:7] != np.asarray(dot(x[:7], w))).sum())
    return differ > 0, f"{differ} of {7 * 48} entries differ between 7 and 64 rows"


def threefry_slow() -> Observation:
    """Test whether random bits cost far more than the rounding that uses them."""
    key = jax.random.key(0)
    bits = jax.jit(lambda x: x + jax.random.bits(key, x.shape).astype(jnp.float32))
    ratio = _seconds(bits, donate=False) / _seconds(jax.jit(lambda x: x + 1.0), donate=False)
    return ratio > 3, f"{ratio:.0f} times x + 1"


def product_in_low_precision() -> Observation:
    """Test whether a float32 matrix product silently runs in TF32 or BF16 on an accelerator."""
    x, w = _random(64, 512), _random(512, 64)
    error = np.abs(
        np.asarray(jax.jit(jnp.dot)(x, w), np.float64) - x.astype(np.float64) @ w.astype(np.float64)
    )
    # |error| <= K eps sum |x||w| for float32 sums of K terms; TF32 is 2^13 times coarser.
    bound = 512 * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(w))
    return bool((error > bound).any()), f"largest error {(error / bound).max():.2g} of the float32 bound"


def classes_are_one_tree() -> Observation:
    """Test whether two dataclasses of one shape are one pytree, so that jit reuses compiled functions."""
    one, other = (make_dataclass(name, ["x"], frozen=True) for name in ("One", "Other"))
    for each in (one, other):
        jax.tree_util.register_dataclass(each, ["x"], [])
    equal = jax.tree.structure(one(1.0)) == jax.tree.structure(other(1.0))
    return equal, f"the trees of two classes are {'equal' if equal else 'different'}"


CHECKS: dict[str, tuple[Check, str]] = {
    "a constant magic number is optimised away": (constant_magic_disappears, "magic numbers depend on data"),
    "a product and a sum become one FMA": (product_and_sum_fuse, "a real rounding step between them"),
    "division by a scale becomes a product with its reciprocal": (
        division_by_scalar_becomes_product,
        "the divisor depends on the dividend",
    ),
    "a quotient of a quotient becomes one division by a product": (
        two_divisions_become_one,
        "integer operations on the dividend hide it",
    ),
    "exp2 of an integer is not a power of two": (exp2_inexact, "scales are built from exponent bits"),
    "subnormals are flushed to zero": (subnormals_flushed, "integer arithmetic where subnormals matter"),
    "a cast to float8 and back also rounds the gradient": (
        cast_rounds_cotangent,
        "explicit straight-through rules",
    ),
    "the float8 cast overflows to NaN": (cast_does_not_saturate, "overflow is an argument"),
    "jit on float6 arrays fails": (float6_fails, "float32 carriers"),
    "the maximum of a row loses a NaN": (max_loses_nan, "an integer maximum of the bits"),
    "fresh large outputs are much slower than donated ones": (
        fresh_outputs_slow,
        "donated buffers in hot loops",
    ),
    "a matrix product depends on the batch size": (
        product_depends_on_shape,
        "exact or fixed-order accumulation",
    ),
    "the default generator dominates stochastic rounding": (
        threefry_slow,
        "a counter hash inside the kernel",
    ),
    "a float32 product runs in a shorter format": (
        product_in_low_precision,
        "precision=HIGHEST on every product",
    ),
    "two dataclasses of one shape are equal as trees": (
        classes_are_one_tree,
        "the class is part of the tree",
    ),
}
"""The check of each pitfall, and the workaround of simlab."""
