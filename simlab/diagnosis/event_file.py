"""Read the scalars of TensorBoard's event files: TFRecord frames of protocol buffers, without TensorBoard.

Checksums are not verified: a broken frame ends the file.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from simlab.diagnosis.log import Problem

MARK = "tfevents"
"""Part of the name of every event file."""
MAX_FRAME_BYTES = 2**24
MAX_FRAMES = 10**7
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5
"""Wire types."""
Field = tuple[int, int, bytes | int]


def read_event_file(path: Path, problems: list[Problem]) -> Iterator[dict[str, float]]:
    """Yield one entry per step, `step` and the scalars by tag; add a truncated end to `problems`."""
    steps: dict[int, dict[str, float]] = {}
    for number, frame in enumerate(_read_frames(path, problems), start=1):
        try:
            step, scalars = _parse_event(frame)
        except (ValueError, struct.error) as error:
            problems.append(Problem(path.name, number, f"not an event ({error})"))
            continue
        if scalars:
            steps.setdefault(step, {"step": step}).update(scalars)
    yield from (steps[step] for step in sorted(steps))


def _read_frames(path: Path, problems: list[Problem]) -> Iterator[bytes]:
    with open(path, "rb") as file:
        for number in range(1, MAX_FRAMES):
            head = file.read(12)
            if not head:
                return
            size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else MAX_FRAME_BYTES + 1
            frame = file.read(size + 4) if size <= MAX_FRAME_BYTES else b""
            if len(frame) < size + 4:
                problems.append(Problem(path.name, number, "the file is truncated or not an event file"))
                return
            yield frame[:-4]


def _parse_event(frame: bytes) -> tuple[int, dict[str, float]]:
    """Return the step and the scalars of an `Event` message."""
    step, scalars = 0, {}
    for number, wire, value in _read_fields(frame):
        if (number, wire) == (2, VARINT):
            assert isinstance(value, int)
            # Negative int64 values are stored as unsigned.
            step = value - 2**64 if value >= 2**63 else value
        elif (number, wire) == (5, BYTES):
            scalars |= _parse_summary(value)
    return step, scalars


def _parse_summary(message: bytes | int) -> dict[str, float]:
    scalars = {}
    for number, wire, item in _read_fields(message):
        if (number, wire) != (1, BYTES):
            continue
        values = {(inner, kind): value for inner, kind, value in _read_fields(item)}
        tag, simple, tensor = values.get((1, BYTES)), values.get((2, FLOAT)), values.get((8, BYTES))
        number = _unpack("<f", simple) if simple is not None else _parse_tensor(tensor)
        if isinstance(tag, bytes) and number is not None:
            scalars[tag.decode(errors="replace")] = number
    return scalars


def _parse_tensor(message: bytes | int | None) -> float | None:
    """Return the only float32 or float64 of a `TensorProto`, None for any other tensor."""
    if message is None:
        return None
    values = {(number, wire): value for number, wire, value in _read_fields(message)}
    kind = "<d" if values.get((1, VARINT)) == 2 else "<f"
    for field in ((4, BYTES), (5, BYTES), (6, BYTES), (5, FLOAT), (6, DOUBLE)):
        value = values.get(field)
        if isinstance(value, bytes) and len(value) == struct.calcsize(kind):
            return _unpack(kind, value)
    return None


def _unpack(kind: str, value: bytes | int) -> float:
    if not isinstance(value, bytes):
        raise ValueError("a number is not fixed-width")
    return float(struct.unpack(kind, value)[0])


def _read_fields(message: bytes | int) -> Iterator[Field]:
    """Yield number, wire type and value of each field of a message."""
    if not isinstance(message, bytes):
        raise ValueError("a message is a number")
    offset = 0
    while offset < len(message):
        key, offset = _read_varint(message, offset)
        wire = key & 7
        if wire == VARINT:
            value, offset = _read_varint(message, offset)
            yield key >> 3, wire, value
            continue
        size = {DOUBLE: 8, FLOAT: 4}.get(wire)
        if wire == BYTES:
            size, offset = _read_varint(message, offset)
        if size is None or offset + size > len(message):
            raise ValueError("a field is truncated")
        yield key >> 3, wire, message[offset : offset + size]
        offset += size


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(message):
            raise ValueError("a number is truncated")
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), offset
    raise ValueError("a number has more than 64 bits")
