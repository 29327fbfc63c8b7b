"""Diagnose the batch of a training step during training: metrics under `simlab/`, and a stop.

```python
live = LiveDiagnosis(every=10, stop_on=("weight_sync", "token_shift"))
metrics |= live.diagnose_verl(batch, step)  # verl: in `fit`, after the old log-probs
live.attach_trl(trainer)  # TRL: GRPOTrainer with use_vllm, before `train`
```

Needs NumPy only.
"""

# pyright: reportMissingImports=false

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from simlab.diagnosis.log import LOWEST, TokenLog
from simlab.diagnosis.ranking import RankedCause, rank_causes

if TYPE_CHECKING:
    from trl import GRPOTrainer

PREFIX = "simlab/"
SHOWN_SIGNATURES = (
    "level",
    "bias",
    "outliers",
    "shift_gain",
    "row_stride",
    "first_token",
    "last_token",
    "index_jump",
)


class Array(Protocol):
    """A NumPy array or a tensor of torch, [B, T]."""

    def __getitem__(self, rows: slice, /) -> "Array":
        """Return rows."""
        ...


class HasBatch(Protocol):
    """verl's `DataProto`: arrays by name."""

    batch: Mapping[str, Array]


class RunStoppedError(RuntimeError):
    """Raised when a cause in `stop_on` is more probable than `stop_probability` for `patience` diagnoses."""


@dataclass
class LiveDiagnosis:
    """Run the detectors of `simlab diagnose` on every `every`-th step.

    - `stop_on`: causes that stop the run; empty: none.
    - `stop_probability`, `patience`: probability, and consecutive diagnoses that reach it.
    - `max_tokens`: tokens of a diagnosis. Of a larger batch, consecutive sequences are read, others at each
      diagnosis. `simlab run bench_live` measures the cost.
    """

    every: int = 1
    stop_on: Sequence[str] = ()
    stop_probability: float = 0.9
    patience: int = 2
    max_tokens: int = 200_000
    last: list[RankedCause] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    strikes: int = 0

    def observe(
        self,
        step: int,
        logp_train: Array,
        logp_infer: Array,
        mask: Array,
        ids: Array | None = None,
        logp: Array | None = None,
    ) -> dict[str, float]:
        """Diagnose padded arrays [B, T] and return metrics by name; {} at steps without a diagnosis.

        Args:
            step: Training step.
            logp_train: Log-probabilities at theta_old, training engine, nats.
            logp_infer: Log-probabilities as the inference engine reported them, nats.
            mask: Nonzero at the tokens that are trained on.
            ids: Token ids, or None.
            logp: Log-probabilities of the update's forward pass, or None.

        Raises:
            RunStoppedError: A cause in `stop_on` stayed probable.
        """
        if step % self.every:
            return {}
        start = time.perf_counter()
        rows = choose_rows(mask, self.max_tokens, step // self.every)
        log = as_log(step, rows, logp_train, logp_infer, mask, ids, logp)
        self.last, signatures = rank_causes(log)
        best = self.last[0]
        self.metrics = {f"{PREFIX}probability/{cause.cause}": cause.probability for cause in self.last}
        self.metrics |= {
            f"{PREFIX}{name}": signatures[name]
            for name in SHOWN_SIGNATURES
            if np.isfinite(signatures.get(name, np.nan))
        }
        self.metrics[f"{PREFIX}seconds"] = time.perf_counter() - start
        is_bad = best.cause in self.stop_on and best.probability >= self.stop_probability
        self.strikes = self.strikes + 1 if is_bad else 0
        if self.strikes >= self.patience:
            evidence = "; ".join(best.evidence)
            raise RunStoppedError(
                f"step {step}: {best.cause} ({best.probability:.0%}): {evidence}. Fix: {best.fix}."
            )
        return self.metrics

    def diagnose_verl(self, batch: HasBatch, step: int) -> dict[str, float]:
        """Diagnose verl's `DataProto` after its old log-probs are computed."""
        fields = batch.batch
        if "rollout_log_probs" not in fields or "old_log_probs" not in fields:
            raise ValueError(
                "batch must have rollout_log_probs and old_log_probs. Set "
                "actor_rollout_ref.rollout.calculate_log_probs=True."
            )
        names = ("old_log_probs", "rollout_log_probs", "response_mask", "responses")
        return self.observe(step, *(_as_array(fields[name]) for name in names))

    def attach_trl(self, trainer: "GRPOTrainer") -> None:
        """Diagnose each batch that TRL's `GRPOTrainer` scores, and add the metrics to its logs.

        Wraps `_generate_and_score_completions`, which returns both log-probs when vLLM samples, or a
        `rollout_func` if `steps_per_generation` is not `gradient_accumulation_steps`. Tokens of tools, and
        those whose log-prob vLLM reported as NaN, are left out.
        """
        score = trainer._generate_and_score_completions

        def score_and_diagnose(*positional: object, **named: object) -> dict[str, Array]:
            scored = score(*positional, **named)
            names = ("old_per_token_logps", "sampling_per_token_logps", "completion_mask", "completion_ids")
            if trainer.model.training and all(scored.get(name) is not None for name in names):
                train, infer, mask, ids = (_as_array(scored[name]) for name in names)
                if scored.get("tool_mask") is not None:
                    mask = mask * _as_array(scored["tool_mask"])
                step = int(trainer.state.global_step)
                for name, value in self.observe(step, train, infer, mask, ids).items():
                    trainer._metrics["train"][name].append(value)
            return scored

        trainer._generate_and_score_completions = score_and_diagnose


def _as_array(values: Array) -> np.ndarray:
    """Return a tensor or an array as NumPy."""
    detach = getattr(values, "detach", None)
    return np.asarray(values if detach is None else detach().float().cpu().numpy())


def choose_rows(mask: Array, max_tokens: int, turn: int) -> slice:
    """Return consecutive rows of a mask [B, T] with at most `max_tokens` tokens; other rows at each `turn`.

    Consecutive, so that the order in which workers wrote the rows stays visible.
    """
    ends = np.cumsum((_as_array(mask) != 0).sum(1))
    parts = max(1, -(-int(ends[-1]) // max_tokens))
    first = turn % parts * len(ends) // parts
    before = int(ends[first - 1]) if first else 0
    last = int(np.searchsorted(ends, before + max_tokens, side="right"))
    return slice(first, max(first + 1, last))


def as_log(
    step: int,
    rows: slice,
    logp_train: Array,
    logp_infer: Array,
    mask: Array,
    ids: Array | None,
    logp: Array | None,
) -> TokenLog:
    """Return `rows` of padded arrays [B, T] as a log without masked tokens."""
    chosen = _as_array(mask[rows]) != 0
    chosen &= ~(np.isnan(_as_array(logp_train[rows])) | np.isnan(_as_array(logp_infer[rows])))
    lengths = chosen.sum(1)

    def pick(values: Array) -> np.ndarray:
        return _as_array(values[rows])[chosen]

    def scores(values: Array) -> np.ndarray:
        return np.clip(np.nan_to_num(pick(values), nan=LOWEST), LOWEST, 0).astype(np.float32)

    return TokenLog(
        lengths=lengths,
        logp_train=scores(logp_train),
        logp_infer=scores(logp_infer),
        mask=np.ones(int(lengths.sum()), bool),
        step=np.full(len(lengths), step),
        logp=None if logp is None else scores(logp),
        ids=None if ids is None else pick(ids).astype(np.int64),
    )
