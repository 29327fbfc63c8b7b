"""Servers of other frameworks: in a separate process behind a pipe, or in this process."""

import importlib.util
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from simlab.serving.protocol import EngineError
from simlab.serving.servers import messages
from simlab.serving.servers.messages import Message, receive, send


class ServerProcess:
    """A process that answers messages one at a time; after a failure it reports the cause and ends."""

    def __init__(self, command: list[str], name: str, install: str, timeout: float):
        """Start `command`. Raises `EngineError` with `install` if it cannot be started."""
        self.name, self.timeout = name, timeout
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process writes to it
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            )
        except OSError as error:
            raise EngineError(f"{name} is not installed ({error}). Install: {install}") from error
        self.answers: queue.Queue[Message | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                self.answers.put(receive(cast(BinaryIO, self.process.stdout)))
        except Exception:  # the pipe ended, or its content was not a message
            self.answers.put(None)

    def call(self, do: str, arrays: Mapping[str, np.ndarray] | None = None, **header: object) -> Message:
        """Return the answer to a request. Raises `EngineError` for an error, no answer or a timeout."""
        try:
            send(cast(BinaryIO, self.process.stdin), {"do": do, **header}, dict(arrays or {}))
            answer = self.answers.get(timeout=self.timeout)
        except (BrokenPipeError, ValueError):
            answer = None
        except queue.Empty:
            self.close()
            raise EngineError(f"{self.name} did not answer {do!r} within {self.timeout:g} s.") from None
        if answer is None:
            self.close()
            raise EngineError(f"{self.name} died during {do!r}: {self._read_last_line()}")
        if "error" in answer[0]:
            raise EngineError(f"{self.name} failed in {do!r}: {answer[0]['error']}")
        return answer

    def _read_last_line(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.returncode}"

    def close(self) -> None:
        """Stop the process."""
        self.process.kill()
        self.process.wait()


class InProcessServer:
    """The server of `script` in this process, which must have its framework; without a timeout."""

    def __init__(self, script: Path, name: str, install: str):
        """Import the framework. Raises `EngineError` with `install` if it is missing."""
        self.name = name
        spec = importlib.util.spec_from_file_location(script.stem, script)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # The script imports its sibling by this name, which another module may have here.
        previous = sys.modules.get("messages")
        sys.modules["messages"] = messages
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            raise EngineError(f"{name} is not installed ({error}). Install: {install}") from error
        finally:
            del sys.modules["messages"]
            if previous is not None:
                sys.modules["messages"] = previous
        self.server = module.Server()

    def call(self, do: str, arrays: Mapping[str, np.ndarray] | None = None, **header: object) -> Message:
        """Call the server. Raises `EngineError` if the framework fails."""
        try:
            return getattr(self.server, do)(header, dict(arrays or {}))
        except Exception as error:  # any failure of the framework fails the engine
            raise EngineError(f"{self.name} failed in {do!r}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Release the model of the framework."""
        self.server = None
