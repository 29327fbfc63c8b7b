"""Files of `torch.save`, without torch and without running anything that is in them.

Such a file is a zip of stored (never compressed) records: a pickle, and the bytes of each tensor. The pickle
may call nothing but the functions below, which build arrays; whatever else it names ends the reading.
"""

import io
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

LARGEST_PICKLE = 2**28
MAX_NUMBERS = 2**29
"""Numbers in all tensors of a file together: a tensor may be wider than its storage."""

# Stored numbers by the class that the pickle names; BF16 is widened to float32.
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
"""What opcodes in disorder end in."""


def load(path: Path) -> Any:
    """Return what `torch.save` wrote, tensors as arrays: dicts, lists, numbers, text, nothing else.

    Raises `ValueError` naming the file for anything else in it, and for records that do not fit the file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _Reader(path, archive).load()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path.name}: no file of torch.save, or a truncated one ({error})") from error
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path.name}: {error}") from error
    except (*CORRUPT, ValueError) as error:
        if str(error).startswith(f"{path.name}: "):
            raise
        raise ValueError(f"{path.name}: its pickle is corrupt ({type(error).__name__}: {error})") from error


class _Reader:
    def __init__(self, path: Path, archive: zipfile.ZipFile):
        self.path, self.archive = path, archive
        self.storages: dict[tuple[str, str], np.ndarray] = {}
        self.numbers = 0
        self.sizes = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in self.sizes if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"{path.name}: {len(pickles)} pickles in it, not one of torch.save")
        self.pickle, self.root = pickles[0], pickles[0].removesuffix("data.pkl")

    def load(self) -> Any:
        reader = self

        # The one in Python: that in C sets aside a memo as large as a pickle asks for.
        class Unpickler(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue]
            def find_class(self, module: str, name: str) -> Any:
                return reader.allowed(module, name)

            def persistent_load(self, pid: Any) -> np.ndarray:
                return reader.storage(pid)

        return Unpickler(io.BytesIO(self.record(self.pickle, LARGEST_PICKLE))).load()

    def record(self, name: str, most: int) -> bytes:
        info = self.sizes.get(name)
        if info is None:
            raise ValueError(f"{self.path.name}: record {name!r} is missing")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{self.path.name}: record {name!r} is compressed; torch.save stores")
        if info.file_size > min(most, self.path.stat().st_size):
            raise ValueError(f"{self.path.name}: record {name!r} claims {info.file_size:,} bytes")
        return self.archive.read(info)

    def allowed(self, module: str, name: str) -> Any:
        """Return what a pickle may name, made anew so that it cannot change the lab's own."""
        if module in ("torch", "torch.storage") and name in STORAGES:
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self.builder()
        if (module, name) == ("collections", "OrderedDict"):
            return lambda *pairs: dict(*pairs)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a log does not need: refused")

    def storage(self, pid: Any) -> np.ndarray:
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and pid[1] in STORAGES):
            raise pickle.UnpicklingError("it has a record that is no tensor storage: refused")
        kind, key = STORAGES[pid[1]], str(pid[2])
        if not re.fullmatch(r"[0-9]{1,12}", key):
            raise pickle.UnpicklingError(f"it names a record {key!r}: refused")
        if (kind, key) not in self.storages:
            halves = kind == "bf16"
            raw = self.record(f"{self.root}data/{key}", self.path.stat().st_size)
            numbers = np.frombuffer(raw, "<u2" if halves else kind)
            widened = (numbers.astype(np.uint32) << 16).view(np.float32) if halves else numbers
            self.storages[kind, key] = widened
        return self.storages[kind, key]

    def builder(self) -> Callable[..., np.ndarray]:
        """Return what builds the tensors of this file."""

        def build(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> np.ndarray:
            array = _tensor(self.path.name, storage, offset, size, stride)
            self.numbers += array.size
            if self.numbers > MAX_NUMBERS:
                raise ValueError(f"{self.path.name}: over {MAX_NUMBERS:,} numbers in its tensors")
            return array

        return build


def _tensor(file: str, storage: Any, offset: Any, size: Any, stride: Any) -> np.ndarray:
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
