"""Arms that continue runs without correction from their middle, or one from their first quarter."""

from dataclasses import replace

from experiments.arms.chains import NONE
from experiments.arms.settings import on_chains
from experiments.regimes import CONTROL
from simlab.core.json_value import Json
from simlab.studies.arms import Arm


def _fork(name: str, **changes: Json) -> Arm:
    continued = on_chains(NONE)
    return replace(
        continued, id=name, label=name, changes={**continued.changes, **changes}, forked_from=continued
    )


FORK = _fork("fork")
FORK_OTHER_DATA = _fork("fork, other data")
FORK_BF16 = _fork("fork, BF16 engines", engines=CONTROL)
FORK_SEQ_TIS = _fork("fork, sequence TIS", objective="grpo+seq_tis")
EARLY_FORK = _fork("early fork, other data")
