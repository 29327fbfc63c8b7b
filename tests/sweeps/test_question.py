"""A long sweep asks first, and only where somebody can answer."""

import os
import pty
import subprocess
import sys

import pytest

from simlab.sweeps.sweep import ASK_ABOVE_MINUTES, _ask_to_start

ASK = """
from simlab.sweeps.sweep import _ask_to_start
print("answers", [_ask_to_start(60.0, False) for _ in "12"])
"""


def test_long_sweep_asks_on_a_terminal():
    terminal, theirs = pty.openpty()
    # With TERM=dumb, as in some runners, it would be no terminal.
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-c", ASK], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as asking:
        os.close(theirs)
        os.write(terminal, b"\nyes\n")
        said = b""
        while True:
            try:
                read = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            said += read
    os.close(terminal)
    assert asking.returncode == 0, said
    assert said.count(b"continue? [y/N]") == 2
    assert b"answers [False, True]" in said


@pytest.mark.parametrize(("minutes", "yes"), [(60.0, False), (60.0, True), (ASK_ABOVE_MINUTES / 2, False)])
def test_long_sweep_starts_without_a_terminal(minutes, yes, capsys):
    assert _ask_to_start(minutes, yes)
    assert "continue?" not in capsys.readouterr().out
