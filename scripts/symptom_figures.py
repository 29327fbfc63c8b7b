"""Draw the figures of docs/symptoms; `python -m scripts.symptom_figures` writes them."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from figures.diagnosis import draw
from figures.style import render
from simlab.core.results import Results
from simlab.diagnosis import diagnose_log, write_diagnosis
from simlab.diagnosis.injected_faults import generate_log
from simlab.diagnosis.log import TokenLog

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "symptoms"


def _shift_tokens() -> TokenLog:
    log = generate_log("no_fault", 0, 1, noise=0.5, sequences=128)
    ends = np.cumsum(log.lengths)
    source = np.arange(len(log.logp_infer)) + 1
    source[ends - 1] = ends - 1
    return replace(log, logp_infer=log.logp_infer[source])


def _one_worker() -> TokenLog:
    """Take every fourth row from a log whose inference weights are old."""
    good = generate_log("no_fault", 0, 2, noise=0.05, sequences=128)
    late = generate_log("partial", 0.8, 2, noise=0.05, sequences=128)
    bad = good.spread_to_tokens(np.arange(good.num_sequences) % 4 == 0)
    names = ("logp_train", "logp_infer", "ids")
    mixed = {name: np.where(bad, getattr(late, name), getattr(good, name)) for name in names}
    return replace(good, **mixed, logp=None, version=None)


def _frozen_old() -> TokenLog:
    log = generate_log("no_fault", 0, 3, noise=0.05, sequences=128, with_update=True)
    assert log.update is not None
    return replace(log, logp=log.logp_train, update=np.ones_like(log.update))


LOGS: dict[str, Callable[[], TokenLog]] = {
    "ratio_explodes": _shift_tokens,
    "kl_grows_slowly": lambda: generate_log("frozen", 0.6, 4, noise=0.05, sequences=128),
    "entropy_surges": _one_worker,
    "clip_fraction_is_tiny": _frozen_old,
}


def draw_all() -> None:
    """Write one PNG per symptom."""
    for name, make in LOGS.items():
        with tempfile.TemporaryDirectory() as folder:
            out = write_diagnosis(diagnose_log(make()), Path(folder), name)
            drawn = render(draw, Results(out), out, name)
            picture = next(path for path in drawn if path.suffix == ".png")
            (FOLDER / f"{name}.png").write_bytes(picture.read_bytes())


if __name__ == "__main__":
    draw_all()
