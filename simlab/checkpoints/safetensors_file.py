"""Read and write safetensors: check headers before reading, stream weights in blocks.

The library `safetensors` maps complete files into memory, so loading with it needs the memory of two
checkpoints. The tests use it as the oracle.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np
from jaxtyping import Float, UInt8

from simlab.core.atomic import write_atomically

DTYPES: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Formats that simlab reads and writes."""
WRITABLE_DTYPES = DTYPES | {"I8": np.dtype(np.int8)}
"""Formats that simlab writes: `DTYPES` and int8."""

# The limit of the library `safetensors`.
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, at `offset` bytes from the start; `rows` reads the weights.

    `decode` maps the bytes of rows, uint8 [rows, row_bytes], to float32 [rows, width].
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    row_bytes: int
    decode: Callable[[UInt8[np.ndarray, "rows bytes"]], Float[np.ndarray, "rows width"]]

    @property
    def nbytes(self) -> int:
        """Size in the file, bytes."""
        return prod(self.shape[:-1]) * self.row_bytes

    def rows(self, start: int, stop: int) -> Float[np.ndarray, "rows width"]:
        """Return rows start to stop - 1 along the last axis, all others flattened, float32 [rows, width]."""
        size = (stop - start) * self.row_bytes
        data = np.fromfile(self.file, np.uint8, size, offset=self.offset + start * self.row_bytes)
        if data.size != size:
            raise ValueError(f"{self.file} was truncated during reading.")
        return self.decode(data.reshape(stop - start, self.row_bytes))


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name without reading the weights.

    Raises:
        ValueError: The header is corrupt, or its tensors do not fill the file exactly.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise ValueError(
                f"{path} is truncated or not a safetensors file: header of {length} bytes, file of {size}."
            )
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is corrupt: the header is not JSON ({error}).") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is corrupt: the header is not a JSON object.")
    header.pop("__metadata__", None)
    tensors = {name: _check_entry(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_coverage(path, tensors, 8 + length, size)
    return tensors


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _check_entry(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    where = f"tensor {name!r} in {path}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{where} is corrupt: the entry must have dtype, shape and data_offsets.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in list(DTYPES):
        raise ValueError(f"dtype of {where} must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise ValueError(f"{where} is corrupt: shape {shape!r}, data_offsets {offsets!r}")
    stored = DTYPES[dtype]
    tensor = StoredTensor(
        path,
        dtype,
        tuple(shape),
        start + offsets[0],
        prod(shape[-1:]) * stored.itemsize,
        lambda data: data.view(stored).astype(np.float32, copy=False),
    )
    if tensor.nbytes != offsets[1] - offsets[0]:
        raise ValueError(
            f"{where} is corrupt: {dtype} {shape} needs {tensor.nbytes} bytes, got {offsets[1] - offsets[0]}."
        )
    return tensor


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_coverage(path: Path, tensors: dict[str, StoredTensor], start: int, size: int) -> None:
    """Raise `ValueError` if tensors overlap, leave gaps, or extend beyond the end of the file."""
    end = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if tensor.offset != end:
            raise ValueError(
                f"{path} is corrupt: tensor {name!r} must start at byte {end}, got {tensor.offset}."
            )
        end += tensor.nbytes
    if end != size:
        state = "truncated" if end > size else "corrupt"
        raise ValueError(f"{path} is {state}: the tensors end at byte {end}, the file at {size}.")


class TensorToWrite(NamedTuple):
    """A tensor to write as `dtype`; `values` are float32, or int8 for `I8`, with any strides."""

    name: str
    values: np.ndarray
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size in the file, bytes."""
        return self.values.size * WRITABLE_DTYPES[self.dtype].itemsize


def write_safetensors(path: Path, tensors: Sequence[TensorToWrite]) -> None:
    """Write tensors block by block.

    Raises:
        ValueError: A finite weight exceeds the range of its format.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        name, values, dtype = tensor
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, values, dtype in tensors:
            for block in _iterate_blocks(values):
                narrow = _cast_checked(name, block, dtype)
                file.write(narrow.view(np.uint8).data)

    write_atomically(path, write)


def _cast_checked(name: str, block: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(block, WRITABLE_DTYPES[dtype])
    if dtype != "F32" and not np.isfinite(narrow[np.isfinite(block)]).all():
        largest = np.abs(block[np.isfinite(block)]).max()
        raise ValueError(f"weights of {name!r} must fit {dtype}, got {largest:g}. Use F32 or BF16.")
    return narrow


def _iterate_blocks(values: np.ndarray) -> Iterator[np.ndarray]:
    values = np.atleast_2d(values)
    for index in np.ndindex(values.shape[:-2]):
        for block in row_blocks(*values.shape[-2:]):
            yield values[index][block]


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Return slices of the rows of a float32 matrix, about 4 MB each."""
    step = max(1, 2**20 // max(width, 1))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
