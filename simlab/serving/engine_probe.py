"""A probe: engines that sample times engines that score, on one checkpoint; each pair becomes a report."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simlab.core.experiment import Run
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.open_engine import check_name, open_engine
from simlab.serving.probe_report import Rows, divergence_rows, mismatch_rows
from simlab.serving.protocol import EngineError, Sampled, Sampling

Weights = tuple[TransformerConfig, Params]
DEPTHS = 8
LOOKED_AT = 4  # sequences whose hidden states are compared
TABLES = ("engines", "samples", "pairs", "bins", "positions", "flips", "layers", "tokens", "failures")


class Probe:
    """Measures pair after pair; every table is written after every pair, so that a failure loses nothing."""

    def __init__(self, run: Run, rows: Rows | None = None, **labels: str):
        """Write to `run`, behind `rows` that are there already; every row begins with `labels`."""
        self.run, self.labels = run, labels
        self.rows: Rows = {name: [] for name in TABLES} if rows is None else rows

    def measure(
        self,
        config: TransformerConfig,
        params: Params,
        prompts: np.ndarray,
        samplers: Sequence[str],
        scorers: Sequence[str],
        sampling: Sampling,
    ) -> None:
        """Let each of `samplers` answer `prompts` [N, P], and itself and each of `scorers` score that.

        An engine scoring its own samples is decoding against prefill. One that fails is entered in
        `failures`, and the others go on. A sampler lives as long as it samples, scorers until the end.
        Raises `ValueError` for unknown names.
        """
        weights = config, params
        for name in (*samplers, *scorers):
            check_name(name)
        with contextlib.ExitStack() as stack:
            kept = {name: self._opened(name, weights, stack) for name in dict.fromkeys(scorers)}
            for name in self.run.track(list(dict.fromkeys(samplers)), "samplers"):
                with contextlib.ExitStack() as own:
                    sampler = kept[name] if name in kept else self._opened(name, weights, own)
                    if sampler is None:
                        continue
                    sampled = self._attempt(name, "generate", sampler.generate, prompts, sampling)
                    if sampled is None:
                        continue
                    self._keep_samples(name, prompts, sampled)
                    for scorer, engine in {name: sampler, **kept}.items():
                        if engine is not None:
                            self._pair(config, prompts, sampled, (name, sampler), (scorer, engine))
                            self.write()
        self.write()

    def write(self) -> None:
        """Write every table that has rows."""
        for name, rows in self.rows.items():
            if rows:
                self.run.table(name, rows)

    def _add(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.rows[table] += [{**self.labels, **row} for row in rows]

    def _opened(self, name: str, weights: Weights, stack: contextlib.ExitStack) -> Any:
        """Return the engine with its weights, closed with `stack`; None if that fails."""
        engine = self._attempt(name, "open", open_engine, name)
        if engine is None:
            return None
        if hasattr(engine, "close"):
            stack.callback(engine.close)
        apart = self._attempt(name, "sync_weights", engine.sync_weights, *weights)
        if apart is None:
            return None
        known = ", ".join(f"{key} {value}" for key, value in engine.describe().get("versions", {}).items())
        self._add("engines", [{"engine": name, "probe_apart": apart, "versions": known}])
        return engine

    def _attempt(self, name: str, doing: str, work: Any, *arguments: Any) -> Any:
        """Return what `work` returns, or None and a row of `failures`."""
        try:
            return work(*arguments)
        except EngineError as error:
            self._add("failures", [{"engine": name, "during": doing, "error": str(error)}])
            self.run.report(f"{name}: {error}")
            return None

    def _keep_samples(self, sampler: str, prompts: np.ndarray, sampled: Sampled) -> None:
        lengths = sampled.mask.sum(1)
        self._add(
            "samples",
            (
                {
                    "sampler": sampler,
                    "sequence": number,
                    "prompt": prompts[number].tolist(),
                    "response": sampled.responses[number, : lengths[number]].tolist(),
                }
                for number in range(len(prompts))
            ),
        )

    def _pair(
        self,
        config: TransformerConfig,
        prompts: np.ndarray,
        sampled: Sampled,
        sampler: tuple[str, Any],
        scorer: tuple[str, Any],
    ) -> None:
        scored = self._attempt(scorer[0], "score", scorer[1].score, prompts, sampled.responses)
        if scored is None:
            return
        pair = {"sampler": sampler[0], "scorer": scorer[0]}
        for table, rows in mismatch_rows(pair, prompts, sampled, scored).items():
            self._add(table, rows)
        if sampler == scorer or not all(hasattr(engine, "hidden_states") for _, engine in (sampler, scorer)):
            return
        layers = config.num_hidden_layers
        depths = sorted({int(depth) for depth in np.linspace(1, layers, min(DEPTHS, layers)).round()})
        tokens = np.concatenate([prompts, sampled.responses], axis=1)[:LOOKED_AT]
        hidden = [
            self._attempt(name, "hidden_states", engine.hidden_states, tokens, depths)
            for name, engine in (scorer, sampler)
        ]
        if hidden[0] is not None and hidden[1] is not None:
            self._add("layers", divergence_rows(pair, hidden[0], hidden[1], depths))
