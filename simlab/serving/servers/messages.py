"""Messages between simlab and a server: a JSON header and named arrays, as one `.npz` after its length."""

import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

# Text printed into the pipe would decode to more bytes than this.
MAX_BYTES = 2**34
Message = tuple[dict[str, object], dict[str, np.ndarray]]


def send(stream: BinaryIO, header: dict[str, object], arrays: dict[str, np.ndarray]) -> None:
    """Write one message."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, header=np.asarray(json.dumps(header)), **arrays)
    content = buffer.getvalue()
    stream.write(len(content).to_bytes(8, "little") + content)
    stream.flush()


def receive(stream: BinaryIO) -> Message:
    """Read one message. Raises `EOFError` if the other side closed the pipe, also inside a message."""
    length = int.from_bytes(_read_exactly(stream, 8), "little")
    if length > MAX_BYTES:
        raise ValueError(
            f"a message must have at most {MAX_BYTES} bytes, got {length}. The pipe holds other output."
        )
    with np.load(io.BytesIO(_read_exactly(stream, length)), allow_pickle=False) as stored:
        arrays = dict(stored)
    return json.loads(str(arrays.pop("header"))), arrays


def _read_exactly(stream: BinaryIO, length: int) -> bytes:
    content = stream.read(length)
    if content is None or len(content) < length:
        raise EOFError("The pipe was closed.")
    return content


def serve(make: Callable[[], object]) -> None:
    """Answer requests with the methods of `make()` until standard input ends; errors are answers too.

    Redirects the output of the framework to standard error, since standard output carries the answers.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    server = make()
    while True:
        try:
            header, arrays = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            send(answers, *getattr(server, str(header["do"]))(header, arrays))
        except Exception as error:  # any failure of the framework is reported, not lost
            traceback.print_exc()
            send(answers, {"error": f"{type(error).__name__}: {error}"}, {})
