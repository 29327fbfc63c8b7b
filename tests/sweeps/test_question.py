"""A long sweep asks first, and only where somebody can answer."""

import os
import pty

import pytest

from simlab.sweeps.sweep import ASK_ABOVE_MINUTES, _ask_to_start


def test_long_sweep_asks_on_a_terminal(monkeypatch):
    terminal, theirs = pty.openpty()
    # With TERM=dumb, as in some runners, it would be no terminal.
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs) as typed, os.fdopen(os.dup(theirs), "w") as shown, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", typed)
        patch.setattr("sys.stderr", shown)
        os.write(terminal, b"\nyes\n")
        answers = [_ask_to_start(60.0, False) for _ in "12"]
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
    assert answers == [False, True]
    assert said.count(b"continue? [y/N]") == 2


@pytest.mark.parametrize(("minutes", "yes"), [(60.0, False), (60.0, True), (ASK_ABOVE_MINUTES / 2, False)])
def test_long_sweep_starts_without_a_terminal(minutes, yes, capsys):
    assert _ask_to_start(minutes, yes)
    assert "continue?" not in capsys.readouterr().out
