"""What is wrong with a run, from its token-level log: answers with evidence, and how sure they are."""

from simlab.harness.diagnosis.answer import Answer
from simlab.harness.diagnosis.diagnosis import Diagnosis, diagnose, diagnosis_of, write_diagnosis
from simlab.harness.diagnosis.log import Problem, TokenLog
from simlab.harness.diagnosis.reading import read_log
from simlab.harness.diagnosis.schema import COLUMNS

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
