"""Lines of progress where there is no terminal."""

import pytest

from simlab.core import progress


@pytest.mark.parametrize(
    ("seconds", "printed"), [(0.0, ["runs: 1 of 2 steps", "runs: 2 of 2 steps"]), (1e9, [])]
)
def test_lines_are_printed_now_and_then(seconds, printed, monkeypatch):
    lines = []
    monkeypatch.setattr(progress.console, "print", lambda line, **_: lines.append(line))
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    with progress.show_progress("runs", 2) as advance:
        for _ in range(2):
            assert advance() is None
    assert lines == ["runs: 2 steps", *printed]
