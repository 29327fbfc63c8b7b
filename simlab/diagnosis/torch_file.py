"""Read files of `torch.save` without torch and without running their code.

Such a file is a zip of stored (never compressed) records: a pickle, and the bytes of each tensor. The pickle
may call only the functions below, which build arrays; any other name is rejected.
"""

import io
import pickle
import re
import struct
import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

MAX_PICKLE_BYTES = 2**28
MAX_NUMBERS = 2**29
"""Maximum total size of the tensors of a file: with stride 0 a tensor is larger than its storage."""

# dtype of the stored numbers by class name; BF16 is widened to float32.
STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "?",
}


CORRUPT = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    RecursionError,
    TypeError,
    struct.error,
)
"""Exceptions that corrupt opcodes raise."""


def load(path: Path) -> object:
    """Return the content of a file of `torch.save`: arrays, dicts, lists, numbers, text.

    Raises:
        ValueError: The file contains other types, or records that do not match its pickle.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _Unpickler(path, archive).load()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path.name} must be a complete file of torch.save, got: {error}") from error
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path.name}: {error}") from error
    except (*CORRUPT, ValueError) as error:
        if str(error).startswith(f"{path.name}: "):
            raise
        raise ValueError(f"{path.name}: the pickle is corrupt ({type(error).__name__}: {error})") from error


# The Python implementation: the C one allocates a memo of any size that the pickle names.
class _Unpickler(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue]
    def __init__(self, path: Path, archive: zipfile.ZipFile):
        self.path, self.archive = path, archive
        self.storages: dict[tuple[str, str], np.ndarray] = {}
        self.numbers = 0
        self.sizes = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in self.sizes if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"{path.name}: a file of torch.save must have one pickle, got {len(pickles)}")
        self.root = pickles[0].removesuffix("data.pkl")
        super().__init__(io.BytesIO(self.read_record(pickles[0], MAX_PICKLE_BYTES)))

    def read_record(self, name: str, most: int) -> bytes:
        info = self.sizes.get(name)
        if info is None:
            raise ValueError(f"{self.path.name}: record {name!r} is missing")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{self.path.name}: record {name!r} must not be compressed")
        if info.file_size > min(most, self.path.stat().st_size):
            raise ValueError(f"{self.path.name}: record {name!r} claims {info.file_size:,} bytes")
        return self.archive.read(info)

    def find_class(self, module: str, name: str) -> object:
        """Return a fresh object for an allowed name, so that a pickle cannot modify shared ones."""
        if module in ("torch", "torch.storage") and name in STORAGES:
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda *arguments: self.build_tensor(*arguments)
        if (module, name) == ("collections", "OrderedDict"):
            return lambda *pairs: dict(*pairs)
        raise pickle.UnpicklingError(f"the pickle names {module}.{name}, which is not allowed in a log")

    def persistent_load(self, pid: Any) -> np.ndarray:
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and pid[1] in STORAGES):
            raise pickle.UnpicklingError("the pickle has a record that is not a tensor storage")
        kind, key = STORAGES[pid[1]], str(pid[2])
        if not re.fullmatch(r"[0-9]{1,12}", key):
            raise pickle.UnpicklingError(f"the pickle names a record {key!r}, which is not a number")
        if (kind, key) not in self.storages:
            halves = kind == "bf16"
            raw = self.read_record(f"{self.root}data/{key}", self.path.stat().st_size)
            numbers = np.frombuffer(raw, "<u2" if halves else kind)
            widened = (numbers.astype(np.uint32) << 16).view(np.float32) if halves else numbers
            self.storages[kind, key] = widened
        return self.storages[kind, key]

    def build_tensor(
        self, storage: object, offset: int, size: Sequence[int], stride: Sequence[int], *_: object
    ) -> np.ndarray:
        array = _view_storage(self.path.name, storage, offset, size, stride)
        self.numbers += array.size
        if self.numbers > MAX_NUMBERS:
            raise ValueError(f"{self.path.name}: over {MAX_NUMBERS:,} numbers in its tensors")
        return array


def _view_storage(
    file: str, storage: object, offset: int, size: Sequence[int], stride: Sequence[int]
) -> np.ndarray:
    numbers = (offset, *size, *stride)
    if not isinstance(storage, np.ndarray) or len(size) != len(stride):
        raise ValueError(f"{file}: a tensor without storage")
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"{file}: a tensor of shape {size!r}, strides {stride!r}")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if prod(size) > MAX_NUMBERS or (prod(size) and last >= len(storage)):
        raise ValueError(f"{file}: a tensor of shape {tuple(size)} in a storage of {len(storage)} numbers")
    if not prod(size):
        return np.zeros(size, storage.dtype)
    strides = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, strides, writeable=False)
