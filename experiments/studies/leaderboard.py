"""Leaderboards of dense and of MoE models: remedies at one noise level and one budget.

The estimand is the fraction of the loss that a remedy recovers: (remedy - no correction) / (BF16 control - no
correction), of the held-out reward under both engines. A further arm without a
remedy runs E4M3 with its three mantissa bits, rounded to nearest, to show the effect of truncation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from experiments.arms.chains import BF16, DPPO, EXACT, ICEPOP, IPO, KPOP, NONE, SEQ_MIS, THREE_BITS, TIS
from experiments.arms.changes import with_halving
from experiments.arms.moe import R3
from experiments.arms.settings import on_chains, with_moe
from experiments.papers.vexact import V6
from experiments.regimes import BASE
from experiments.studies.observed_runs import observe_arms
from experiments.studies.resume import check_arms, load_resumed
from experiments.studies.runs import Frames, run_arms
from experiments.studies.stages import Part, run_parts
from simlab.core.results import Results
from simlab.studies import Measured
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.design import Design
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.registration import LOOKS, hash_rule, register
from simlab.studies.remedy_ranking import MARGIN, MIN_LOSS, read_leaderboard
from simlab.studies.verdicts import measure_trials

REFERENCES = (NONE, BF16, THREE_BITS)
RECENT = (ICEPOP, DPPO, IPO, KPOP)
"""Corrections and trust regions of 2026."""
REMEDIES = (TIS, SEQ_MIS, EXACT, with_halving(NONE), *RECENT)
MOE_REMEDIES = (TIS, EXACT, R3, *RECENT)
RULE = (
    "Remedies: {remedies}. "
    "Estimand: mean held-out reward under the training and the inference engine at steps 150 and 200. Share "
    "of the loss recovered by a remedy = (remedy - no correction) / (BF16 control - no correction), ratio of "
    "means over initial policies, Fieller interval; supported if the interval at the Bonferroni level over "
    f"the remedies lies above {MARGIN:g} and a sign-flip test of remedy - no correction - {MARGIN:g} (BF16 "
    "control - no correction) over initial policies rejects at that level too; contradicted if it lies below "
    f"-{MARGIN:g}; negligible if inside. Primary criterion of V6: zero mismatch minus token TIS, share "
    f"beyond {MARGIN:g}, at the level of the interim analysis. Premise: BF16 control minus no correction "
    f"above {MIN_LOSS:g} at 95%, else premise absent. Analyses after 8 (futility only), 16 and 24 policies "
    "at O'Brien-Fleming levels; blocks of 8 initial policies, the arms of the primary criterion before the "
    "others. Margin: a fifth of the loss is the least that "
    "decides which remedy to use."
)
VALIDATION, EVERY = "both engines, 32 prompts", 50
"""The diagnostic of every run, and the steps between two of them: the rule reads the last two."""


def run_validated(run: ExperimentContext, arms: Sequence[Arm], block: int | None) -> Frames:
    """Run these arms from that block of initial policies, with the reward on held-out prompts."""
    with run.phase("diagnostics"):
        rows = observe_arms(run, dict.fromkeys(arms, (VALIDATION,)), arms, block, EVERY)
    return run_arms(run, arms, block) | {"diagnostics": rows}


@dataclass(frozen=True)
class RemedyComparison:
    """The remedies of one model; `place` puts an arm into its setting."""

    experiment: str
    place: Callable[[Arm], Arm]
    remedies: tuple[Arm, ...]

    @property
    def rule(self) -> str:
        """The rule in words, hashed into the manifest before the first block."""
        return RULE.format(remedies=", ".join(arm.id for arm in self.remedies))

    @property
    def schedule(self) -> list[Part]:
        """All blocks of the arms of the primary criterion, then those of the others."""
        first = tuple(map(self.place, (NONE, BF16, TIS, EXACT)))
        others = tuple(arm for arm in self.arms if arm not in first)
        return [(block, arms) for arms in (first, others) for block in range(len(LOOKS))]

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All arms."""
        return tuple(map(self.place, (*REFERENCES, *self.remedies)))

    def run(self, run: ExperimentContext) -> None:
        """Run the schedule; in smoke mode, whose arms share one engine pair, a block of two arms."""
        run.configure(rule=self.rule)
        parts = [(0, tuple(map(self.place, (NONE, TIS))))] if run.smoke else self.schedule
        schedule, tables = dict(enumerate(parts)), load_resumed(run, self.arms, self.arms)
        run_parts(run, tables, lambda _, number: schedule.get(number), run_validated)

    def collect_evidence(self, results: Results | m.Tables) -> list[Measured]:
        """Return V6, with the share that each remedy recovers in the note."""
        trial = V6.trial(self.experiment)
        recovered = read_leaderboard(results, trial).recovered
        note = ", ".join(f"{each.arm} {each.share:+.2f}" for each in recovered)
        measured = measure_trials(results, [trial])
        return [replace(each, note="; ".join(filter(None, [each.note, note]))) for each in measured]


DENSE = RemedyComparison("leaderboard", on_chains, REMEDIES)
MOE = RemedyComparison("leaderboard_experts", with_moe, MOE_REMEDIES)


def _experiment(question: str, comparison: RemedyComparison, minutes: float) -> Experiment:
    arms = {arm.id: arm for arm in comparison.arms}
    return Experiment(
        name=comparison.experiment,
        question=question,
        decision_rule=comparison.rule,
        run=comparison.run,
        minutes=minutes,
        claims=(V6.id,),
        collect_evidence=comparison.collect_evidence,
        check_resume=partial(check_arms, arms=arms),
        design=Design(BASE, arms, comparison.place(NONE).id),
        registered={**register((V6,), comparison.experiment), V6.id: hash_rule(comparison.rule)},
        on_one_thread=True,
    )


EXPERIMENT = _experiment("Which remedy recovers most of the reward that mismatch costs?", DENSE, 60.0)
MOE_EXPERIMENT = _experiment("Which remedy of an MoE recovers the reward that mismatch costs?", MOE, 78.0)
