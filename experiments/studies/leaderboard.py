"""Leaderboards of dense and of MoE models: remedies at one noise level and one budget.

The estimand is the share of the loss that a remedy recovers: (remedy - no correction) / (BF16 control - no
correction), of the held-out reward under both engines. Round to nearest E4M3 with its three mantissa bits and
no remedy is run next to the untreated arm, so that the two are not mistaken for each other.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from experiments.arms.catalog import ALL_ARMS
from experiments.arms.chains import BF16, EXACT, NEAREST_BITS, NONE, TIS
from experiments.arms.moe import R3
from experiments.arms.names import chain_arm, halving_arm, moe_arm
from experiments.papers.vexact import V6
from experiments.regimes import BASE
from experiments.studies.policy_blocks import Schedule, run_blocks
from experiments.studies.resume import check_arms
from experiments.studies.runs import SEED
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results
from simlab.studies import Measured
from simlab.studies import estimands as m
from simlab.studies.design import Design
from simlab.studies.registration import hash_rule, register
from simlab.studies.remedy_ranking import MARGIN, MIN_LOSS, read_leaderboard
from simlab.studies.verdicts import measure_trials

E4M3 = NEAREST_BITS[3]
REFERENCES = (NONE, BF16, E4M3)
REMEDIES = (TIS, EXACT, halving_arm(NONE))
MOE_REMEDIES = (TIS, EXACT, R3)
RULE = (
    "Remedies: {remedies}. "
    "Estimand: mean held-out reward under the training and the inference engine at steps 150 and 200. Share "
    "of the loss recovered by a remedy = (remedy - no correction) / (BF16 control - no correction), ratio of "
    "means over initial policies, Fieller interval; supported if the interval at the Bonferroni level over "
    f"the remedies lies above {MARGIN:g} and a sign-flip test of remedy - no correction - {MARGIN:g} (BF16 "
    "control - no correction) over initial policies rejects at that level too; contradicted if it lies below "
    f"-{MARGIN:g}; negligible if inside. Primary criterion of V6: zero mismatch minus token TIS, share "
    f"beyond {MARGIN:g}, at the level of the look. Premise: BF16 control minus no correction above "
    f"{MIN_LOSS:g} at 95%, else premise absent. Looks after 8 (futility only), 16 and 24 initial policies at "
    "O'Brien-Fleming levels; blocks of 8 initial policies, the arms of the primary criterion before the "
    "others. Margin: a fifth of the loss is the least that "
    "decides which remedy to use."
)
MINUTES = {EXACT: 6.0}
DEFAULT_MINUTES = 4.5
"""Core-minutes of eight runs of an arm of dense models, on a core whose neighbor is busy."""


@dataclass(frozen=True)
class Contest:
    """The remedies of one model; `named` returns the name of its arm, `slowness` scales the expected cost."""

    experiment: str
    named: Callable[[str], str]
    remedies: tuple[str, ...]
    slowness: float = 1.0

    @property
    def rule(self) -> str:
        """The rule in words, hashed into the manifest before the first block."""
        return RULE.format(remedies=", ".join(self.remedies))

    @property
    def schedule(self) -> Schedule:
        """The arms of the primary criterion and E4M3 first, then the others, block by block."""
        first = tuple(map(self.named, (NONE, BF16, TIS, EXACT)))
        others = tuple(arm for arm in self.arms if arm not in first)
        later = [(block, (arm,)) for block in (0, 1) for arm in others]
        return [(0, first), later[0], (1, first), (2, first), *later[1:], (2, others)]

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the order in which a block runs them."""
        return tuple(map(self.named, (*REFERENCES, *self.remedies)))

    def run(self, run: Run) -> None:
        """Run the schedule; in smoke mode its first entry."""
        named = {self.named(arm): MINUTES.get(arm, DEFAULT_MINUTES) for arm in (*REFERENCES, *self.remedies)}
        minutes = {arm: self.slowness * value for arm, value in named.items()}
        run.configure(rule=self.rule)
        run_blocks(run, self.schedule[:1] if run.smoke else self.schedule, minutes)

    def collect_evidence(self, results: Results | m.Tables) -> list[Measured]:
        """Return V6, with the share that each remedy recovers in the note."""
        trial = V6.trial(self.experiment)
        recovered = read_leaderboard(results, trial).recovered
        note = ", ".join(f"{each.arm} {each.share:+.2f}" for each in recovered)
        measured = measure_trials(results, [trial])
        return [replace(each, note="; ".join(filter(None, [each.note, note]))) for each in measured]


DENSE = Contest("leaderboard", chain_arm, REMEDIES)
MOE = Contest("leaderboard_experts", moe_arm, MOE_REMEDIES, slowness=1.3)


def _experiment(name: str, question: str, contest: Contest) -> Experiment:
    arms = {arm: ALL_ARMS[arm] for arm in contest.arms}
    return Experiment(
        name=name,
        question=question,
        decision_rule=contest.rule,
        run=contest.run,
        minutes=60.0 * contest.slowness,
        claims=(V6.id,),
        figures=(name,),
        collect_evidence=contest.collect_evidence,
        check_resume=check_arms,
        design=Design(BASE, arms, contest.named(NONE), (SEED,)),
        registered={**register((V6,), name), V6.id: hash_rule(contest.rule)},
    )


EXPERIMENT = _experiment(
    "leaderboard", "Which remedy recovers most of the reward that mismatch costs?", DENSE
)
MOE_EXPERIMENT = _experiment(
    "leaderboard_experts", "Which remedy of an MoE recovers the reward that mismatch costs?", MOE
)
