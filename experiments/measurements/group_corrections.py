"""Compute exact bias, standard deviation and error of all corrections by enumerating complete groups.

Masks over the complete batch (M2PO, the second-moment mask) and score centering have no weight per sample, so
`theory_corrections` omits them. Here a group of four is the batch. The sums run over all 65536 groups of
sequences of four binary tokens.
"""

from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.theory.correction_moments import CORRECTIONS, Quality, qualities, random_pair
from simlab.theory.expectation import random_rewards
from simlab.theory.group_rules import group_rule_qualities
from simlab.theory.recent_corrections import RECENT

VOCABULARY, LENGTH, GROUP = 2, 4, 4
LEVELS = (0.03, 0.1, 0.3)
GROUPS = 64
"""Number of groups over which a gradient is averaged."""


def rows_of(rho_std: float, seed: int) -> list[dict]:
    """Return one row per correction: bias, std, norm and mean squared error."""
    policies = random_pair(LENGTH, rho_std, seed, vocabulary=VOCABULARY)
    rewards = random_rewards(policies.space, seed)
    measured: dict[str, Quality] = {
        **qualities(policies, rewards, GROUP, corrections=CORRECTIONS | RECENT),
        **group_rule_qualities(policies, rewards, GROUP),
    }
    return [
        {"rho_std": rho_std, "seed": seed, "correction": name, "bias": each.bias, "std": each.std}
        | {"norm": each.norm, f"mse_{GROUPS}": each.mse(GROUPS)}
        for name, each in measured.items()
    ]


def run(run: ExperimentContext) -> None:
    """Write the table `moments`."""
    seeds = run.seeds(range(1 if run.smoke else 8))
    levels = LEVELS[-1:] if run.smoke else LEVELS
    run.configure(
        vocabulary=VOCABULARY, length=LENGTH, group_size=GROUP, rho_std=list(levels), advantage="rloo"
    )
    cases = [(level, seed) for level in levels for seed in seeds]
    run.table("moments", [row for case in run.track(cases, "moments") for row in rows_of(*case)])


EXPERIMENT = Experiment(
    name="group_corrections",
    question="Which correction has the least error, masks of the whole batch and score centering included?",
    decision_rule=(
        "least mean squared error of the gradient of 64 groups, relative to |gradient|^2 and averaged over 8 "
        "policies at one std of rho; exact sums, no sampling error"
    ),
    run=run,
    minutes=2.0,
    kind="identity",
)
