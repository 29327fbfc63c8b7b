"""Protocols of the parts of verl's objects that the plug-in reads; verl is not installed next to simlab."""

# pyright: reportMissingImports=false

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from simlab.core.json_value import Json


class Columns(Protocol):
    """A `TensorDict`: tensors of equal length by name."""

    def keys(self) -> Iterable[str]:
        """Return the names."""
        ...

    def __getitem__(self, name: str, /) -> Tensor:
        """Return a column."""
        ...

    def __setitem__(self, name: str, values: Tensor, /) -> None:
        """Set a column."""
        ...


class DataProto(Protocol):
    """A batch of the legacy trainer."""

    batch: Columns
    non_tensor_batch: Mapping[str, Sequence[object]]
    meta_info: dict[str, Json]

    def __len__(self) -> int:
        """Return the number of sequences."""
        ...


class KVBatchMeta(Protocol):
    """A batch of the trainer of verl 0.9: keys and tags of its fields in the transfer queue."""

    keys: Sequence[str]
    tags: Sequence[Mapping[str, Json]]
    partition_id: str
    extra_info: dict[str, Json]


class Trainer(Protocol):
    """A trainer with its OmegaConf config."""

    config: Json
    global_steps: int


class LossConfig(Protocol):
    """The config of a policy loss."""

    clip_ratio: float
    clip_ratio_low: float | None
    clip_ratio_high: float | None
    rollout_n: int

    def get(self, name: str, default: float, /) -> float:
        """Return a field, or the default if it is missing."""
        ...
