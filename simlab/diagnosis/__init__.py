"""Diagnose a run from its token-level log: ranked causes with evidence, check and fix.

`diagnose`, `diagnose_log` and `write_diagnosis` also need JAX; the others do not, so that a trainer without
JAX can call them.
"""

from typing import TYPE_CHECKING

from simlab.diagnosis.answer import Answer
from simlab.diagnosis.causes import CAUSES
from simlab.diagnosis.comparison import compare_logs
from simlab.diagnosis.log import Problem, TokenLog
from simlab.diagnosis.log_reader import read_log
from simlab.diagnosis.ranking import RankedCause, rank_causes
from simlab.diagnosis.schema import COLUMNS

if TYPE_CHECKING:
    from simlab.diagnosis.diagnosis import Diagnosis, diagnose, diagnose_log, write_diagnosis

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


def __getattr__(name: str) -> object:
    """Import what needs JAX when it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from simlab.diagnosis import diagnosis

    return getattr(diagnosis, name)
