"""Throughput of quantize-dequantize against the memory limit and against other libraries."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.quantize_peers import PEERS, Peer
from simlab.core.experiment import Experiment, Run
from simlab.formats import FORMATS, OVERFLOWS, ROUNDINGS, quantize

FORMATS_TIMED = ("e4m3fn", "e5m2", "fp16", "bf16")
LIMIT = ("add_one", "fp32", "donated")
NEAREST, STOCHASTIC, PEER_FACTOR = 0.9, 0.4, 5.0


@dataclass(frozen=True)
class Method:
    """A timed call on `elements` numbers; `call` leaves its result in place for the next one."""

    name: str
    format: str
    variant: str
    call: Callable[[], Any]
    elements: int


class InPlace:
    """A compiled function that overwrites its input; its buffer survives from call to call."""

    def __init__(self, function: Callable[..., Any], x: np.ndarray, *arguments: Any):
        """Compile at the first call; `arguments` follow the buffer."""
        self.compiled = jax.jit(function, donate_argnums=0)
        self.buffer, self.arguments = jnp.array(x), jax.device_put(arguments)

    def __call__(self) -> None:
        """Overwrite the buffer once."""
        self.buffer = self.compiled(self.buffer, *self.arguments).block_until_ready()


def fresh(function: Callable[..., Any], x: np.ndarray) -> Callable[[], Any]:
    """A compiled function that writes to new memory at every call."""
    compiled, array = jax.jit(function), jnp.array(x)
    return lambda: compiled(array).block_until_ready()


def limits(x: np.ndarray) -> list[Method]:
    """What memory allows."""
    target = np.empty_like(x)
    return [
        Method(*LIMIT, InPlace(lambda v: v + 1, x), x.size),
        Method("add_one", "fp32", "plain", fresh(lambda v: v + 1, x), x.size),
        Method("np.copyto", "fp32", "warm target", lambda: np.copyto(target, x), x.size),
    ]


def kernels(x: np.ndarray) -> list[Method]:
    """The rounding kernel: formats as constants of the program and as its arguments."""
    methods, key = [], jax.random.key(0)

    def add(name: str, fmt: str, variant: str, call: Callable[[], Any]) -> None:
        methods.append(Method(name, fmt, variant, call, x.size))

    for name in FORMATS_TIMED:
        fmt = FORMATS[name]
        add(
            "simlab",
            name,
            "static, donated",
            InPlace(lambda v, f=fmt: quantize(v, f), x),
        )
        add(
            "simlab",
            name,
            "traced, donated",
            InPlace(lambda v, f: quantize(v, f), x, fmt),
        )
    fmt = FORMATS["e4m3fn"]
    add("simlab", "e4m3fn", "static, plain", fresh(lambda v: quantize(v, fmt), x))
    for rounding in ("toward_zero", "up"):
        call = InPlace(lambda v, r=rounding: quantize(v, fmt, rounding=r), x)
        add(f"simlab {rounding}", "e4m3fn", "static, donated", call)
    mode, rule = ROUNDINGS["nearest_even"], OVERFLOWS["saturate"]
    call = InPlace(lambda v, f, r, o: quantize(v, f, rounding=r, overflow=o), x, fmt, mode, rule)
    add("simlab all traced", "e4m3fn", "traced, donated", call)
    call = InPlace(lambda v, k: quantize(v, fmt, rounding="stochastic", key=k), x, key)
    add("simlab stochastic", "e4m3fn", "static, donated", call)
    call = InPlace(lambda v, f, k: quantize(v, f, rounding="stochastic", key=k), x, fmt, key)
    add("simlab stochastic", "e4m3fn", "traced, donated", call)
    return methods


def jax_own(x: np.ndarray) -> list[Method]:
    """What JAX offers itself; neither saturates."""

    def cast(v):
        return v.astype(jnp.float8_e4m3fn).astype(jnp.float32)

    def reduce(v):
        return jax.lax.reduce_precision(v, exponent_bits=4, mantissa_bits=3)

    return [
        Method("jax astype", "e4m3fn", "donated", InPlace(cast, x), x.size),
        Method("jax reduce_precision", "e4m3fn", "donated", InPlace(reduce, x), x.size),
    ]


def peers(x: np.ndarray) -> tuple[list[Method], list[Peer]]:
    """The other libraries that are installed, and those that are not."""
    present, absent = [], []
    for peer in PEERS:
        part = x[: peer.elements].copy()
        try:
            present.append(Method(peer.name, "e4m3fn", peer.variant, peer.prepare(part), part.size))
        except ModuleNotFoundError:
            absent.append(peer)
    return present, absent


def interleave(run: Run, methods: list[Method], rounds: int, calls: int, seed: int) -> np.ndarray:
    """Seconds per element [rounds, methods]: medians of `calls`, in another order every round."""
    rng = np.random.default_rng(seed)
    for method in methods:
        method.call()
    seconds = np.empty((rounds, len(methods)))
    for i in run.track(range(rounds), "rounds"):
        for j in rng.permutation(len(methods)):
            method, times = methods[j], []
            for _ in range(calls):
                start = time.perf_counter()
                method.call()
                times.append(time.perf_counter() - start)
            seconds[i, j] = np.median(times) / method.elements
    return seconds


def summarize(methods: list[Method], seconds: np.ndarray) -> list[dict[str, Any]]:
    """One row per method; ratios are taken within a round, where the machine was the same."""
    keys = [(method.name, method.format, method.variant) for method in methods]
    ratios = seconds[:, [keys.index(LIMIT)]] / seconds
    rows = []
    for j, method in enumerate(methods):
        low, ratio, high = np.quantile(ratios[:, j], [0.25, 0.5, 0.75])
        rows.append(
            {
                "method": method.name,
                "format": method.format,
                "variant": method.variant,
                "status": "measured",
                "elements": method.elements,
                "gel_per_s": 1e-9 / float(np.median(seconds[:, j])),
                "ratio_to_limit": ratio,
                "ratio_low": low,
                "ratio_high": high,
                "hint": "",
            }
        )
    return rows


def missing_row(peer: Peer) -> dict[str, Any]:
    """A row for a library that is not there."""
    numbers = dict.fromkeys(("gel_per_s", "ratio_to_limit", "ratio_low", "ratio_high"), float("nan"))
    row = {"method": peer.name, "format": "e4m3fn", "variant": peer.variant, "status": "not installed"}
    return row | {"elements": 0} | numbers | {"hint": peer.hint}


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The decision rules with the measured numbers."""
    names = {peer.name for peer in PEERS}
    measured = [row for row in rows if row["status"] == "measured"]
    best_peer = max(row["gel_per_s"] for row in measured if row["method"] in names)
    verdicts = []
    for row in measured:
        if row["method"] not in ("simlab", "simlab stochastic") or "donated" not in row["variant"]:
            continue
        bound = NEAREST if row["method"] == "simlab" else STOCHASTIC
        rule = f"{row['method']} {row['format']} {row['variant']}: ratio to limit"
        verdicts.append({"rule": rule, "value": row["ratio_to_limit"], "bound": bound})
        if row["method"] == "simlab" and row["format"] == "e4m3fn":
            rule = f"simlab e4m3fn {row['variant']}: times the best peer measured"
            verdicts.append({"rule": rule, "value": row["gel_per_s"] / best_peer, "bound": PEER_FACTOR})
    return [verdict | {"holds": bool(verdict["value"] >= verdict["bound"])} for verdict in verdicts]


def run(run: Run) -> None:
    elements, rounds, calls = (2**16, 2, 1) if run.smoke else (2**24, 21, 3)
    (seed,) = run.seeds([0])
    run.configure(elements=elements, rounds=rounds, calls=calls, limit=" ".join(LIMIT))
    # Normal numbers, subnormals of the 8-bit formats and some that overflow.
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(elements) * np.exp2(rng.uniform(-14, 8, elements))).astype(np.float32)
    present, absent = peers(x)
    methods = [*limits(x), *kernels(x), *jax_own(x), *present]
    rows = summarize(methods, interleave(run, methods, rounds, calls, seed))
    run.table("throughput", [*rows, *map(missing_row, absent)])
    run.table("verdicts", judge(rows))


EXPERIMENT = Experiment(
    name="bench_quantize",
    question="Is rounding to a number format as fast as memory, whether the format is a constant or data?",
    decision_rule="At least 0.9 of an in-place x + 1 for e4m3fn, e5m2, fp16 and bf16 to nearest even, static "
    "and traced; 0.4 for stochastic rounding; 5 times the best other library on e4m3fn.",
    run=run,
    minutes=3.0,
    figures=("quantize_throughput",),
)
