"""Lines of progress where there is no terminal."""

import pytest

from simlab.core import progress

SLOW = ["run: 10 of 40 steps, 90 s left", "run: 20 of 40 steps, 60 s left", "run: 30 of 40 steps, 30 s left"]


@pytest.mark.parametrize(("seconds", "printed"), [(0.0, SLOW), (60.0, SLOW[1:2]), (1e9, [])])
def test_lines_are_printed_now_and_then(seconds, printed, monkeypatch):
    lines, now = [], [0]
    monkeypatch.setattr(progress.console, "print", lambda line, **_: lines.append(line))
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    advance = progress._Lines("run", 40, 10, began=0.0, printed=0.0)
    for now[0] in (30, 60, 90):
        assert advance() is None
    assert lines == printed


def test_lines_without_a_total_only_count(monkeypatch):
    lines = []
    monkeypatch.setattr(progress.console, "print", lambda line, **_: lines.append(line))
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.show_progress("logs") as advance:
        advance()
    assert lines[-1] == "logs: 1 steps"
