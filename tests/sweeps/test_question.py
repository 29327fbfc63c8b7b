"""A long sweep asks first, and only where somebody can answer."""

import os
import pty
import subprocess
import sys

import pytest

from simlab.sweeps.sweep import ASK_ABOVE_MINUTES, _agreed

ASK = "from simlab.sweeps.sweep import _agreed; print('answers', [_agreed(60.0, False) for _ in '12'])"


def test_on_a_terminal_it_takes_a_yes():
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
    assert said.count(b"go on? [y/N]") == 2
    assert b"answers [False, True]" in said


@pytest.mark.parametrize(("minutes", "yes"), [(60.0, False), (60.0, True), (ASK_ABOVE_MINUTES / 2, False)])
def test_nobody_is_asked_where_nobody_is(minutes, yes, capsys):
    assert _agreed(minutes, yes)
    assert "go on?" not in capsys.readouterr().out
