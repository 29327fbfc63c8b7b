"""The columns of a token-level log: Parquet or JSON lines, one row per sequence."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A column: a list over the response's tokens, or one value per sequence.

    - `numbers`: the type of its values.
    - `aliases`: the names that frameworks use.
    """

    over: Literal["tokens", "sequence"]
    numbers: Literal["float", "int", "int16", "text"]
    meaning: str
    required: bool = False
    aliases: tuple[str, ...] = ()


COLUMNS: dict[str, Column] = {
    "logp_train": Column(
        "tokens",
        "float",
        "log-probability at theta_old, training engine; nats",
        required=True,
        aliases=(
            "old_log_probs",
            "old_log_prob",
            "old_per_token_logps",
            "prev_logprobs",
            "trainer_logprobs",
            "prox_logp",
            "action_log_probs",
        ),
    ),
    "logp_infer": Column(
        "tokens",
        "float",
        "log-probability as the inference engine reported it; nats",
        required=True,
        aliases=(
            "rollout_log_probs",
            "sampling_per_token_logps",
            "generation_logprobs",
            "inference_logprobs",
            "logprobs",
        ),
    ),
    "logp": Column(
        "tokens", "float", "log-probability in the forward pass of the update", aliases=("log_prob",)
    ),
    "mask": Column(
        "tokens",
        "int",
        "nonzero at the tokens that are trained on",
        aliases=("response_mask", "loss_mask", "token_loss_mask", "action_mask"),
    ),
    "ids": Column(
        "tokens", "int", "token ids of the response", aliases=("responses", "completion_ids", "token_ids")
    ),
    "advantages": Column("tokens", "float", "advantage of each token"),
    "is_weight": Column(
        "tokens", "float", "IS weight that multiplies the loss", aliases=("rollout_is_weights",)
    ),
    "experts_train": Column(
        "tokens", "int16", "routed experts of each token in the training engine, flattened [layers, top_k]"
    ),
    "experts_infer": Column(
        "tokens", "int16", "the same in the inference engine", aliases=("routed_experts",)
    ),
    "top_k": Column("sequence", "int", "experts per token and layer, for the two above"),
    "step": Column("sequence", "int", "training step", aliases=("global_step", "rollout_id")),
    "group": Column("sequence", "text", "the prompt, by any name", aliases=("uid", "group_index")),
    "reward": Column("sequence", "float", "reward of the sequence", aliases=("score", "rewards")),
    "version": Column(
        "sequence", "int", "updates that the sampling weights had seen", aliases=("weight_version",)
    ),
    "update": Column("sequence", "int", "updates between `logp_train` and `logp`; 0: none"),
    "micro_batch": Column("sequence", "int", "the micro-batch of `logp`", aliases=("micro_step",)),
    "worker": Column(
        "sequence", "int", "the inference worker that sampled the sequence", aliases=("worker_id",)
    ),
}
"""Only `logp_train` and `logp_infer` are required; detectors that lack a column report `cannot tell`."""

RECORD_NAMES = {"reward": "rewards"}
"""Columns with another name in `TokenLog`."""


BROADCAST = ("advantages", "is_weight")
"""Columns over tokens that may hold one number per sequence."""

# Logs without log-probabilities: the columns that identify them, and what to log instead.
TEXT_ONLY: dict[tuple[str, ...], str] = {
    ("completion", "advantage"): (
        "TRL's completions have no log-probs. Pass the directory of trainer_state.json."
    ),
    ("input", "output", "score"): (
        "verl's trainer.rollout_data_dir has text only, no log-probs. Set actor_rollout_ref.rollout."
        "calculate_log_probs=True and write dumps with SIMLAB_VERL_DUMP (docs/verl.md)."
    ),
    ("head_version", "tail_version"): (
        "AReaL's dump_to_file has text only, no log-probs. Write `prox_logp` and `logprobs` of the training "
        "batch to JSON lines."
    ),
}


def find_column(name: str, rename: Mapping[str, str] | None = None) -> str | None:
    """Return the column with the name or alias `name`, or None; `rename` maps other names to columns."""
    name = (rename or {}).get(name, name)
    if name in COLUMNS:
        return name
    return next((column for column, spec in COLUMNS.items() if name in spec.aliases), None)


def explain_missing(names: Iterable[str], rename: Mapping[str, str] | None = None) -> str:
    """Return why a file with the columns `names` is not a token-level log, `rename` applied."""
    names = list(dict.fromkeys(names))
    for markers, reason in TEXT_ONLY.items():
        if set(markers) <= set(names):
            return reason
    columns = {find_column(name, rename) for name in names}
    lacking = [name for name, spec in COLUMNS.items() if spec.required and name not in columns]
    missing = "; ".join(f"{name} (or {', '.join(COLUMNS[name].aliases)})" for name in lacking)
    shown, first = ", ".join(names[:40]) or "none", next(iter(lacking), "logp_train")
    unused = [name for name in rename or {} if name not in names]
    hint = f"--rename of {', '.join(unused)}: no such column. " if unused else ""
    return f"{hint}Columns found: {shown}. Missing: {missing}. Use --rename FOUND={first}."
