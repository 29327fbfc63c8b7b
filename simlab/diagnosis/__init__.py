"""Diagnose a run from its token-level log: answers with evidence and confidence."""

from simlab.diagnosis.answer import Answer
from simlab.diagnosis.diagnosis import Diagnosis, diagnose, diagnose_log, write_diagnosis
from simlab.diagnosis.log import Problem, TokenLog
from simlab.diagnosis.log_reader import read_log
from simlab.diagnosis.schema import COLUMNS

__all__ = [
    "COLUMNS",
    "Answer",
    "Diagnosis",
    "Problem",
    "TokenLog",
    "diagnose",
    "diagnose_log",
    "read_log",
    "write_diagnosis",
]
