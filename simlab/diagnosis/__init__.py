"""Diagnose a run from its token-level log: ranked causes with evidence, check and fix.

`diagnose`, `diagnose_log` and `write_diagnosis` need JAX, `read_log` and `compare_logs` PyArrow. They are
imported on first use, so a trainer without these packages can call the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from simlab.diagnosis.answer import Answer
from simlab.diagnosis.causes import CAUSES
from simlab.diagnosis.log import Problem, TokenLog
from simlab.diagnosis.ranking import RankedCause, rank_causes
from simlab.diagnosis.schema import COLUMNS

if TYPE_CHECKING:
    from simlab.diagnosis.comparison import compare_logs
    from simlab.diagnosis.diagnosis import Diagnosis, diagnose, diagnose_log, write_diagnosis
    from simlab.diagnosis.log_reader import read_log

__all__ = [
    "CAUSES",
    "COLUMNS",
    "Answer",
    "Diagnosis",
    "Problem",
    "RankedCause",
    "TokenLog",
    "compare_logs",
    "diagnose",
    "diagnose_log",
    "rank_causes",
    "read_log",
    "write_diagnosis",
]


MODULES = {"compare_logs": "comparison", "read_log": "log_reader"}
"""Module of each name that is imported when it is used; of the others it is `diagnosis`."""


def __getattr__(name: str) -> object:
    """Import what needs JAX or PyArrow when it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES.get(name, 'diagnosis')}"), name)
