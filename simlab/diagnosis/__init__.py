"""What is wrong with a run, from its token-level log: answers with evidence, and how sure they are."""

from simlab.diagnosis.answer import Answer
from simlab.diagnosis.diagnosis import Diagnosis, diagnose, diagnosis_of, write_diagnosis
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
    "diagnosis_of",
    "read_log",
    "write_diagnosis",
]
