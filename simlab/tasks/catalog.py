"""The tasks by name. `TASKS["add"](difficulty=2, train_size=64)` replaces defaults."""

from simlab.tasks.sequences import Chain, Recurrence, Sorting
from simlab.tasks.sums import Addition, DigitSum, Template, TwoSpellings
from simlab.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    "add": Addition,
    "digit_sum": DigitSum,
    "sort": Sorting,
    "recurrence": Recurrence,
    "chain": Chain,
    "two_spellings": TwoSpellings,
    "template": Template,
}
