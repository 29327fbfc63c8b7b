"""The columns of a token-level log: Parquet or JSON lines, one row per sequence."""

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
        aliases=("old_log_probs", "old_log_prob", "old_per_token_logps"),
    ),
    "logp_infer": Column(
        "tokens",
        "float",
        "log-probability as the inference engine reported it; nats",
        required=True,
        aliases=("rollout_log_probs", "sampling_per_token_logps"),
    ),
    "logp": Column(
        "tokens", "float", "log-probability in the forward pass of the update", aliases=("log_prob",)
    ),
    "mask": Column(
        "tokens", "int", "nonzero at the tokens that are trained on", aliases=("response_mask", "loss_mask")
    ),
    "ids": Column("tokens", "int", "token ids of the response", aliases=("responses", "completion_ids")),
    "advantages": Column("tokens", "float", "advantage of each token"),
    "experts_train": Column(
        "tokens", "int16", "routed experts of each token in the training engine, flattened [layers, top_k]"
    ),
    "experts_infer": Column(
        "tokens", "int16", "the same in the inference engine", aliases=("routed_experts",)
    ),
    "top_k": Column("sequence", "int", "experts per token and layer, for the two above"),
    "step": Column("sequence", "int", "training step", aliases=("global_step", "rollout_id")),
    "group": Column("sequence", "text", "the prompt, by any name", aliases=("uid", "group_index")),
    "reward": Column("sequence", "float", "reward of the sequence", aliases=("score",)),
    "version": Column(
        "sequence", "int", "updates that the sampling weights had seen", aliases=("weight_version",)
    ),
    "update": Column("sequence", "int", "updates between `logp_train` and `logp`; 0: none"),
    "micro_batch": Column("sequence", "int", "the micro-batch of `logp`"),
}
"""Only `logp_train` and `logp_infer` are required; detectors that lack a column report `cannot tell`."""

RECORD_NAMES = {"reward": "rewards"}
"""Columns with another name in `TokenLog`."""


def find_column(name: str) -> str | None:
    """Return the column with the name or alias `name`, or None."""
    if name in COLUMNS:
        return name
    return next((column for column, spec in COLUMNS.items() if name in spec.aliases), None)
