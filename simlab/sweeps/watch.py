"""Watch a sweep from another process."""

import contextlib
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from simlab.sweeps.execute import LIVE
from simlab.sweeps.monitor import ArmProgress, Monitor, collect_arms, draw_file, table_of
from simlab.sweeps.result import load


def watch(folder: Path, every: float = 2.0, once: bool = False, file: Path | None = None) -> None:
    """Show the newest sweep of `folder` until it ends: a table in the terminal, curves in `file`.

    If none is running, draws the last finished sweep; raises `FileNotFoundError` if there is none either.
    """
    try:
        monitor = Monitor(folder)
    except FileNotFoundError:
        arms, monitor = _read_finished(folder), None
    else:
        arms = monitor.poll()
    console = Console()
    screen = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with screen or contextlib.nullcontext():
        while True:
            shown = table_of(arms)
            if screen is None:
                console.print(shown)
            else:
                screen.update(shown, refresh=True)
            if file is not None:
                draw_file(arms, file)
            if once or monitor is None or monitor.is_over:
                return
            time.sleep(every)
            arms = monitor.poll()


def _read_finished(folder: Path) -> dict[str, ArmProgress]:
    """Return the arms of a finished sweep, from its tables."""
    result = load(folder)
    steps = dict(iter(result.steps().groupby("run", sort=False)))
    return collect_arms(
        (str(row["arm"]), row["status"], {name: steps[row["run"]][name].to_numpy(float) for name in LIVE})
        for row in result.runs().to_dict("records")
    )
