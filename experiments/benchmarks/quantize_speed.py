"""Measure the throughput of quantize-dequantize against the memory limit and against other libraries."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from experiments.benchmarks.timing import Call, interleave, median_seconds
from simlab.core.json_value import Json
from simlab.core.plugins import import_module
from simlab.formats import FORMATS, OVERFLOWS, ROUNDINGS, quantize
from simlab.studies.experiment import Experiment, ExperimentContext

FORMATS_TIMED = ("e4m3fn", "e5m2", "fp16", "bf16")
LIMIT = ("add_one", "fp32", "donated")
NEAREST, STOCHASTIC, PEER_FACTOR = 0.9, 0.4, 5.0
STATIC, TRACED = "static, donated", "traced, donated"
Methods = dict[tuple[str, str, str], Call]
"""Timed calls by method, format and variant; each leaves its result in place for the next call."""


class InPlace:
    """A compiled function that overwrites its input; its buffer survives from call to call."""

    def __init__(self, function: Callable[..., object], x: np.ndarray, *arguments: object):
        """Compile at the first call; `arguments` follow the buffer."""
        self.compiled = jax.jit(function, donate_argnums=0)
        self.buffer, self.arguments = jnp.array(x), jax.device_put(arguments)

    def __call__(self) -> None:
        """Overwrite the buffer once."""
        self.buffer = self.compiled(self.buffer, *self.arguments).block_until_ready()


def out_of_place(function: Callable[..., object], x: np.ndarray) -> Call:
    """Return a call of the compiled function that writes to new memory each time."""
    compiled, array = jax.jit(function), jnp.array(x)
    return lambda: compiled(array).block_until_ready()


def own_methods(x: np.ndarray) -> Methods:
    """Return the memory limit, the rounding kernel with static and traced formats, and JAX's own casts."""
    target, e4m3, key = np.empty_like(x), FORMATS["e4m3fn"], jax.random.key(0)
    mode, rule = ROUNDINGS["nearest_even"], OVERFLOWS["saturate"]

    def quantize_traced(v, fmt, rounding, overflow):
        return quantize(v, fmt, rounding=rounding, overflow=overflow)

    def stochastic(v, key, fmt=e4m3):
        return quantize(v, fmt, rounding="stochastic", key=key)

    def cast(v):
        return v.astype(jnp.float8_e4m3fn).astype(jnp.float32)

    def reduce(v):
        return jax.lax.reduce_precision(v, exponent_bits=4, mantissa_bits=3)

    methods: Methods = {
        LIMIT: InPlace(lambda v: v + 1, x),
        ("add_one", "fp32", "plain"): out_of_place(lambda v: v + 1, x),
        ("np.copyto", "fp32", "warm target"): lambda: np.copyto(target, x),
    }
    for name in FORMATS_TIMED:
        fmt = FORMATS[name]
        methods["simlab", name, STATIC] = InPlace(lambda v, f=fmt: quantize(v, f), x)
        methods["simlab", name, TRACED] = InPlace(quantize, x, fmt)
    methods["simlab", "e4m3fn", "static, plain"] = out_of_place(lambda v: quantize(v, e4m3), x)
    for rounding in ("toward_zero", "up"):
        call = InPlace(lambda v, r=rounding: quantize(v, e4m3, rounding=r), x)
        methods[f"simlab {rounding}", "e4m3fn", STATIC] = call
    return methods | {
        ("simlab all traced", "e4m3fn", TRACED): InPlace(quantize_traced, x, e4m3, mode, rule),
        ("simlab stochastic", "e4m3fn", STATIC): InPlace(stochastic, x, key),
        ("simlab stochastic", "e4m3fn", TRACED): InPlace(stochastic, x, key, e4m3),
        ("jax astype", "e4m3fn", "donated"): InPlace(cast, x),
        ("jax reduce_precision", "e4m3fn", "donated"): InPlace(reduce, x),
    }


def _ml_dtypes(x: np.ndarray) -> Call:
    return lambda: x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def _torch(x: np.ndarray) -> Call:
    torch = import_module("torch")
    tensor = torch.from_numpy(x)
    return lambda: tensor.to(torch.float8_e4m3fn).to(torch.float32)


def _gfloat(x: np.ndarray) -> Call:
    gfloat = import_module("gfloat")
    fmt = import_module("gfloat.formats").format_info_ocp_e4m3
    return out_of_place(lambda v: gfloat.round_ndarray(fmt, v, sat=True), x)


def _pychop(x: np.ndarray) -> Call:
    pychop = import_module("pychop")
    pychop.backend("torch")
    chop = pychop.Chop(exp_bits=4, sig_bits=3, rmode=1)
    return partial(chop, import_module("torch").from_numpy(x))


EXTRA = "pip install 'simlab[peers]'"
PEERS: dict[str, tuple[str, Callable[[np.ndarray], Call], str, int]] = {
    "torch": ("cast", _torch, EXTRA, 2**24),
    "ml_dtypes": ("cast", _ml_dtypes, "a dependency of simlab", 2**22),
    "gfloat": ("jit", _gfloat, "pip install 'simlab[test]'", 2**22),
    "pychop": ("torch", _pychop, EXTRA, 2**20),
}
"""Other libraries: variant, function that prepares a call, how to install it, and elements of its array."""


def peer_methods(x: np.ndarray) -> tuple[Methods, list[dict[str, Json]]]:
    """Return the methods of installed libraries, and the rows of those that are not installed."""
    present: Methods = {}
    absent = []
    for name, (variant, prepare, hint, elements) in PEERS.items():
        try:
            present[name, "e4m3fn", variant] = prepare(x[:elements].copy())
        except ModuleNotFoundError:
            row = {"method": name, "format": "e4m3fn", "variant": variant, "status": "not installed"}
            absent.append(row | {"elements": 0, "hint": hint})
    return present, absent


def summarize(methods: Methods, seconds: np.ndarray, elements: int) -> list[dict[str, Json]]:
    """Return one row per method; ratios are within one round, under the same load of the machine.

    Args:
        methods: The timed calls.
        seconds: Of each call in each round, [rounds, calls].
        elements: Size of the array; peers read at most that of `PEERS`.
    """
    sizes = [min(elements, PEERS[method][-1]) if method in PEERS else elements for method, *_ in methods]
    each = seconds / sizes
    limit = each[:, [list(methods).index(LIMIT)]]
    low, ratio, high = np.quantile(limit / each, [0.25, 0.5, 0.75], axis=0)
    rates = 1e-9 / np.median(each, axis=0)
    return [
        {"method": method, "format": fmt, "variant": variant, "status": "measured"}
        | {"elements": sizes[i], "gel_per_s": rates[i], "ratio_to_limit": ratio[i]}
        | {"ratio_low": low[i], "ratio_high": high[i], "hint": ""}
        for i, (method, fmt, variant) in enumerate(methods)
    ]


def judge(rows: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Return the decision rules with the measured numbers."""
    measured = [row for row in rows if row["status"] == "measured"]
    best_peer = max(row["gel_per_s"] for row in measured if row["method"] in PEERS)
    bounds = {"simlab": NEAREST, "simlab stochastic": STOCHASTIC}
    verdicts = []
    for row in measured:
        if row["method"] not in bounds or row["variant"] not in (STATIC, TRACED):
            continue
        rule = f"{row['method']} {row['format']} {row['variant']}: ratio to limit"
        verdicts.append({"rule": rule, "value": row["ratio_to_limit"], "bound": bounds[row["method"]]})
        if row["method"] == "simlab" and row["format"] == "e4m3fn":
            rule = f"simlab e4m3fn {row['variant']}: times the best peer measured"
            verdicts.append({"rule": rule, "value": row["gel_per_s"] / best_peer, "bound": PEER_FACTOR})
    return [verdict | {"holds": bool(verdict["value"] >= verdict["bound"])} for verdict in verdicts]


def run(run: ExperimentContext) -> None:
    elements, rounds, calls = (2**16, 2, 1) if run.smoke else (2**24, 21, 3)
    (seed,) = run.seeds([0])
    run.configure(elements=elements, rounds=rounds, calls=calls, limit=" ".join(LIMIT))
    # Normal numbers, subnormals of the 8-bit formats and some that overflow.
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(elements) * np.exp2(rng.uniform(-14, 8, elements))).astype(np.float32)
    present, absent = peer_methods(x)
    methods = own_methods(x) | present
    timed = partial(median_seconds, calls=calls)
    seconds = interleave(run, list(methods.values()), timed, rounds, seed)
    rows = summarize(methods, seconds, elements)
    run.table("throughput", [*rows, *absent])
    run.table("verdicts", judge(rows))


EXPERIMENT = Experiment(
    name="bench_quantize",
    question="Is rounding to a number format as fast as memory, whether the format is a constant or data?",
    decision_rule="At least 0.9 of an in-place x + 1 for e4m3fn, e5m2, fp16 and bf16 to nearest even, static "
    "and traced; 0.4 for stochastic rounding; 5 times the best other library on e4m3fn.",
    run=run,
    minutes=3.0,
)
