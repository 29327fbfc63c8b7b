"""Write files in the format of torch.save without torch."""

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Tensor:
    """A tensor over all of `values`, unless size, stride or offset say otherwise."""

    values: np.ndarray
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = (1,)
    offset: int = 0
    storage: str = "FloatStorage"
    key: str | None = None


@dataclass
class Raw:
    """Pickle opcodes, written unchanged."""

    opcodes: bytes


def torch_save(path: Path, content: Any, method: int = zipfile.ZIP_STORED, **records: bytes) -> Path:
    """Write `content`: dicts, lists, tuples, text, numbers, None, `Tensor`, `Raw`."""
    storages: dict[str, bytes] = {}
    data = b"\x80\x02" + _opcodes(content, storages) + b"."
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", data)
        for key, raw in (storages | records).items():
            archive.writestr(f"archive/data/{key}", raw)
    return path


def _opcodes(value: Any, storages: dict[str, bytes]) -> bytes:
    def inner(*values: Any) -> bytes:
        return b"".join(_opcodes(one, storages) for one in values)

    if isinstance(value, Raw):
        return value.opcodes
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        raw = value.to_bytes(9, "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, dict):
        return b"}(" + b"".join(inner(key, one) for key, one in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + inner(*value) + b"e"
    if isinstance(value, tuple):
        return b"(" + inner(*value) + b"t"
    key = value.key or str(len(storages))
    if value.key is None:
        storages[key] = value.values.tobytes()
    pid = inner("storage", Raw(f"ctorch\n{value.storage}\n".encode()), key, "cuda:0", len(value.values))
    size = (len(value.values),) if value.size is None else value.size
    hooks = b"ccollections\nOrderedDict\n)R"
    arguments = inner(value.offset, size, value.stride, False, Raw(hooks))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + b"(" + pid + b"tQ" + arguments + b"tR"
