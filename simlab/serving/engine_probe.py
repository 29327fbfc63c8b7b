"""Probe engine pairs on one checkpoint: each sampling engine with each scoring engine."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int

from simlab.core.json_value import Json
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.open_engine import check_name, open_engine
from simlab.serving.probe_report import Rows, build_divergence_rows, build_mismatch_rows
from simlab.serving.protocol import EngineError, RealEngine, Samples, SamplingRequest
from simlab.studies.experiment import ExperimentContext

Result = TypeVar("Result")
Weights = tuple[TransformerConfig, Params]
DEPTHS = 8
COMPARED = 4  # sequences with compared hidden states
TABLES = ("engines", "samples", "pairs", "bins", "positions", "flips", "layers", "tokens", "failures")


class Probe:
    """Measure pair after pair; all tables are written after every pair, so a failure loses nothing."""

    def __init__(self, run: ExperimentContext, **labels: str):
        """Write to `run`; every row starts with `labels`."""
        self.run, self.labels = run, labels
        self.rows: Rows = {name: [] for name in TABLES}

    def measure(
        self,
        config: TransformerConfig,
        params: Params,
        prompts: Int[np.ndarray, "N P"],
        sampling_engines: Sequence[str],
        scoring_engines: Sequence[str],
        sampling: SamplingRequest,
    ) -> None:
        """Sample responses to `prompts` [N, P] and score them with the same and all scoring engines.

        Scoring with the same engine compares decoding with prefill. A failing engine gets a row in
        `failures`; the others continue. Scoring engines stay open until the end.

        Raises:
            ValueError: A name is unknown.
        """
        weights = config, params
        for name in (*sampling_engines, *scoring_engines):
            check_name(name)
        with contextlib.ExitStack() as stack:
            scoring = {name: self._open(name, weights, stack) for name in dict.fromkeys(scoring_engines)}
            for name in self.run.track(list(dict.fromkeys(sampling_engines)), "sampling engines"):
                with contextlib.ExitStack() as own:
                    engine = scoring[name] if name in scoring else self._open(name, weights, own)
                    if engine is not None:
                        self._measure_engine(config, prompts, sampling, (name, engine), scoring)
        self.write()

    def _measure_engine(
        self,
        config: TransformerConfig,
        prompts: Int[np.ndarray, "N P"],
        request: SamplingRequest,
        sampling: tuple[str, RealEngine],
        scoring: Mapping[str, RealEngine | None],
    ) -> None:
        name, engine = sampling
        samples = self._attempt(name, "generate", engine.generate, prompts, request)
        if samples is None:
            return
        self._add_samples(name, prompts, samples)
        for other_name, other in {name: engine, **scoring}.items():
            if other is not None:
                self._measure_pair(config, prompts, samples, sampling, (other_name, other))
                self.write()

    def write(self) -> None:
        """Write all tables with rows."""
        for name, rows in self.rows.items():
            if rows:
                self.run.table(name, rows)

    def _add(self, table: str, rows: Iterable[Mapping[str, Json]]) -> None:
        self.rows[table] += [{**self.labels, **row} for row in rows]

    def _open(self, name: str, weights: Weights, stack: contextlib.ExitStack) -> RealEngine | None:
        """Return the engine with its weights, closed with `stack`; None if opening fails."""
        engine = self._attempt(name, "open", open_engine, name)
        if engine is None:
            return None
        if (close := getattr(engine, "close", None)) is not None:
            stack.callback(close)
        parity_error = self._attempt(name, "sync_weights", engine.sync_weights, *weights)
        if parity_error is None:
            return None
        versions = ", ".join(f"{key} {value}" for key, value in engine.describe().get("versions", {}).items())
        self._add("engines", [{"engine": name, "parity_error": parity_error, "versions": versions}])
        return engine

    def _attempt(
        self, name: str, operation: str, call: Callable[..., Result], *arguments: object
    ) -> Result | None:
        """Return the result of `call`; on an `EngineError` add a row to `failures` and return None."""
        try:
            return call(*arguments)
        except EngineError as error:
            self._add("failures", [{"engine": name, "during": operation, "error": str(error)}])
            self.run.report(f"{name}: {error}")
            return None

    def _add_samples(self, name: str, prompts: Int[np.ndarray, "N P"], samples: Samples) -> None:
        lengths = samples.mask.sum(1)
        self._add(
            "samples",
            (
                {
                    "sampling_engine": name,
                    "sequence": number,
                    "prompt": prompts[number].tolist(),
                    "response": samples.responses[number, : lengths[number]].tolist(),
                }
                for number in range(len(prompts))
            ),
        )

    def _measure_pair(
        self,
        config: TransformerConfig,
        prompts: Int[np.ndarray, "N P"],
        samples: Samples,
        sampling: tuple[str, Any],
        scoring: tuple[str, Any],
    ) -> None:
        scores = self._attempt(scoring[0], "score", scoring[1].score, prompts, samples.responses)
        if scores is None:
            return
        pair = {"sampling_engine": sampling[0], "scoring_engine": scoring[0]}
        for table, rows in build_mismatch_rows(pair, prompts, samples, scores).items():
            self._add(table, rows)
        if sampling == scoring or not all(hasattr(each, "hidden_states") for _, each in (sampling, scoring)):
            return
        layers = config.num_hidden_layers
        depths = sorted({int(depth) for depth in np.linspace(1, layers, min(DEPTHS, layers)).round()})
        tokens = np.concatenate([prompts, samples.responses], axis=1)[:COMPARED]
        hidden = [
            self._attempt(name, "hidden_states", engine.hidden_states, tokens, depths)
            for name, engine in (scoring, sampling)
        ]
        if hidden[0] is not None and hidden[1] is not None:
            self._add("layers", build_divergence_rows(pair, hidden[0], hidden[1], depths))
