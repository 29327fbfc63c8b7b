"""The claims of *acrl*: a controlled discrepancy keeps training stable and entropy high.

Experiments run chains of 64 terms, with noise levels at which the discrepancy starts at about the paper's X:
0.013 to nearest, 0.031 truncated. `acrl_dynamics` varies gamma, X and the level of Y; `acrl_variants` the
distance of the engines; `acrl_algorithms` the algorithm (Tab. 4); `moe_dynamics` the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

import numpy as np

from experiments.arms import acrl, chains
from experiments.arms.acrl import KL, MOVING, PENALTIES, SQUARED
from experiments.arms.settings import at_steady_rate, on_chains, with_moe
from experiments.benchmarks.acrl_overhead import acrl_share
from experiments.papers import hacking, lr
from experiments.papers.shared import (
    CHANGES,
    FACTOR,
    FIVE_CENTINATS,
    FIVE_POINTS,
    GROWS,
    LOSS,
    QUARTER_MORE,
    QUARTER_OF_RUNS,
    REWARDS,
    TEN_POINTS,
    claim_makers,
    collapses,
    find_claims,
    in_e4m3,
    loses,
    recovers,
    recovers_more,
    trial,
)
from experiments.regimes import (
    CHAINS,
    DAPO_PPO_CHAINS,
    E4M3_CHAINS,
    NEAREST_BY_DIFFICULTY,
    NEAREST_CHAINS,
    NEAREST_CLIP_5,
    STEADY_CHAINS,
)
from experiments.studies.stages import training_experiment
from simlab.core.results import Results
from simlab.studies import estimands as m
from simlab.studies.contrasts import CollapseRate, mean_of, minus
from simlab.studies.experiment import ExperimentContext
from simlab.studies.records import (
    COLLAPSE,
    Measured,
    exact,
    manipulation,
    primary,
    secondary,
    stored_row,
    trials_of,
)
from simlab.studies.samples import Exact
from simlab.studies.verdicts import measure_trials
from simlab.theory.checks import acrl_checks as checks

dynamics, measurement, identity = claim_makers("acrl")

# Arms.
NONE, BF16, SEQ_MIS = on_chains(chains.NONE), on_chains(chains.BF16), on_chains(chains.SEQ_MIS)
TIS5, ACRL = on_chains(acrl.TIS5), on_chains(acrl.ACRL)
PER_SEQUENCE, PER_BATCH = on_chains(acrl.PER_SEQUENCE), on_chains(acrl.PER_BATCH)
GAMMAS = {gamma: on_chains(arm) for gamma, arm in acrl.GAMMAS.items()}
X_LOW, X_HIGH = on_chains(acrl.LOW_X), on_chains(acrl.HIGH_X)
TWO_BITS, TWO_BIT_TIS = on_chains(chains.TWO_BITS), on_chains(acrl.TWO_BIT_TIS)
TWO_BIT_MIS, TWO_BIT_ACRL = on_chains(acrl.TWO_BIT_MIS), on_chains(acrl.TWO_BIT_ACRL)
TIS_3, SEQ_MIS_3 = on_chains(acrl.TWO_BIT_TIS_3), on_chains(acrl.TWO_BIT_SEQ_MIS_3)
TWO_BIT_GAMMAS = {gamma: on_chains(arm) for gamma, arm in acrl.TWO_BIT_GAMMAS.items()}
ACRL_3 = TWO_BIT_GAMMAS[0.65]
LOW_X, HIGH_X = on_chains(acrl.TWO_BIT_LOW_X), on_chains(acrl.TWO_BIT_HIGH_X)
DAPO, DAPO_BF16 = on_chains(acrl.DAPO), on_chains(acrl.DAPO_BF16)
DAPO_TIS, DAPO_ACRL = on_chains(acrl.DAPO_TIS), on_chains(acrl.DAPO_ACRL)
PPO, PPO_BF16 = on_chains(acrl.PPO), on_chains(acrl.PPO_BF16)
PPO_TIS, PPO_ACRL = on_chains(acrl.PPO_TIS), on_chains(acrl.PPO_ACRL)
ALGORITHMS = ((DAPO, DAPO_BF16, DAPO_TIS, DAPO_ACRL), (PPO, PPO_BF16, PPO_TIS, PPO_ACRL))
"""No correction, control, token TIS and ACRL of each."""
MOE, MOE_ACRL, MOE_BF16 = with_moe(chains.NONE), with_moe(acrl.ACRL), with_moe(chains.BF16)
STEADY, STEADY_ACRL = at_steady_rate(chains.NONE), at_steady_rate(acrl.ACRL)
DIAGNOSTICS = {BF16: ("under FP8", "held out")} | dict.fromkeys(
    (TWO_BIT_TIS, TWO_BIT_MIS, TWO_BIT_ACRL), ("held out",)
)

# Estimands.
D_MAX = m.Estimand("largest d of a step", lambda view: float(view.curve("discrepancy_max").max()))
D_STD = m.Estimand(
    "mean std of d over 10 steps", lambda view: float(np.nanmean(view.curve("discrepancy_std")))
)
HELD_OUT = {
    engine: m.diagnostic_late(f"held_out_{engine.lower()}", f"reward on held-out prompts under {engine}")
    for engine in ("FP8", "BF16")
}
HARDEST = m.diagnostic_late(
    "held_out_fp8_hardest", "reward on the hardest quarter of held-out prompts under FP8"
)
RARE_TRAIN, COMMON_TRAIN, RARE_INFER, COMMON_INFER = (
    m.share_higher(group, engine) for engine in ("train", "infer") for group in ("rare", "common")
)
BASELINE = m.diagnostic_range("discrepancy_fp8", "discrepancy under FP8")
E4M3_BASELINE = m.diagnostic_range("discrepancy_e4m3", "discrepancy under E4M3")
DISCREPANCY = m.late_log("discrepancy", "the discrepancy d")
LARGEST_COST = 0.005
"""Half a percent of a step."""


E4M3, E4M3_BF16, E4M3_TIS = map(on_chains, (acrl.E4M3, acrl.E4M3_BF16, acrl.E4M3_TIS))
E4M3_MOE, E4M3_MOE_TIS = with_moe(acrl.E4M3), with_moe(acrl.E4M3_TIS)
E4M3_GAMMAS = {gamma: on_chains(arm) for gamma, arm in acrl.E4M3_GAMMAS.items()}
E4M3_X_LOW, E4M3_X_HIGH = on_chains(acrl.E4M3_LOW_X), on_chains(acrl.E4M3_HIGH_X)
OF_TOKENS = 0.05
FIVE_TOKENS = "five tokens in 100"
X_REASON = "less than 0.15 of the loss: does not matter"


# fmt: off
CLAIMS = (
    dynamics("A1", "With FP8 E4M3 rollouts and no correction the discrepancy grows and the run collapses",
        "Fig. 9, 10",
        trial("acrl_dynamics",
            primary(m.GROWTH_D, minus(TWO_BITS, BF16), "positive", FACTOR, because=GROWS),
            collapses(TWO_BITS, BF16),
            regime=NEAREST_CHAINS),
        *in_e4m3(lambda none, bf16, _tis, _mis, _acrl: (
            primary(m.GROWTH_D, minus(none, bf16), "positive", FACTOR, because=GROWS),
            collapses(none, bf16)))),
    dynamics("A2",
        "Under truncated FP8 a run without correction collapses at once, sequence MIS fails, TIS survives, "
        "ACRL is best",
        "Tab. 2",
        trial("acrl_dynamics",
            recovers_more(ACRL, TIS5, NONE, BF16, role="primary"),
            collapses(NONE, BF16),
            recovers_more(TIS5, SEQ_MIS, NONE, BF16),
            recovers(TIS5, NONE, BF16),
            loses(NONE, BF16),
            regime=CHAINS)),
    dynamics("A3",
        "Under ACRL the discrepancy stays near X, its reference, with a lower maximum and less variance than "
        "under TIS",
        "Fig. 9, 10",
        trial("acrl_dynamics",
            primary(m.FROM_X, minus(ACRL, TIS5), "negative", QUARTER_MORE, because=CHANGES),
            secondary(D_MAX, minus(ACRL, TIS5), "negative", 0.01, because="a third of X"),
            secondary(D_STD, minus(ACRL, TIS5), "negative", 0.003, because="a tenth of X"),
            regime=CHAINS),
        trial("acrl_nearest",
            primary(m.FROM_X, minus(ACRL_3, TIS_3), "negative", QUARTER_MORE, because=CHANGES),
            secondary(D_MAX, minus(ACRL_3, TIS_3), "negative", 0.004, because="a third of X, 0.013"),
            secondary(D_STD, minus(ACRL_3, TIS_3), "negative", 0.0013, because="a tenth of X, 0.013"),
            regime=NEAREST_CHAINS),
        *in_e4m3(lambda _none, _bf16, tis, _mis, acrl: (
            primary(m.FROM_X, minus(acrl, tis), "negative", QUARTER_MORE, because=CHANGES),
            secondary(D_MAX, minus(acrl, tis), "negative", 0.004, because="a third of X, 0.013"),
            secondary(D_STD, minus(acrl, tis), "negative", 0.0013, because="a tenth of X, 0.013")))),
    dynamics("A4", "ACRL keeps the highest entropy", "Fig. 8",
        trial("acrl_dynamics",
            primary(m.ENTROPY, minus(ACRL, TIS5), "positive", 0.05, because=FIVE_CENTINATS),
            secondary(m.ENTROPY, minus(ACRL, NONE), "positive", 0.05, because=FIVE_CENTINATS),
            secondary(m.ENTROPY, minus(ACRL, BF16), "positive", 0.05, because=FIVE_CENTINATS),
            regime=CHAINS),
        trial("acrl_nearest",
            primary(m.ENTROPY, minus(ACRL_3, TIS_3), "positive", 0.05, because=FIVE_CENTINATS),
            secondary(m.ENTROPY, minus(ACRL_3, TWO_BITS), "positive", 0.05, because=FIVE_CENTINATS),
            secondary(m.ENTROPY, minus(ACRL_3, BF16), "positive", 0.05, because=FIVE_CENTINATS),
            manipulation(COLLAPSE, CollapseRate(ACRL_3, BF16), "at most", 0.25,
                because="the entropy of a collapsed policy is not exploration; "
                + QUARTER_OF_RUNS),
            regime=NEAREST_CHAINS),
        *in_e4m3(lambda none, bf16, tis, _mis, acrl: (
            primary(m.ENTROPY, minus(acrl, tis), "positive", 0.05, because=FIVE_CENTINATS),
            secondary(m.ENTROPY, minus(acrl, none), "positive", 0.05, because=FIVE_CENTINATS),
            secondary(m.ENTROPY, minus(acrl, bf16), "positive", 0.05, because=FIVE_CENTINATS)))),
    dynamics("A5",
        "ACRL with gamma from 0.5 to 1.7 is stable, from 2.1 it collapses late, at 0.1 the discrepancy grows",
        "Tab. 9",
        trial("acrl_dynamics",
            collapses(GAMMAS[1.0], BF16, role="primary", direction="zero"),
            collapses(GAMMAS[2.1], BF16),
            secondary(m.GROWTH_D, minus(GAMMAS[0.1], BF16), "positive", FACTOR, because=GROWS),
            regime=CHAINS,
            note="gamma 0.5, 0.65, 1.3 and 1.7 are not run."),
        trial("acrl_nearest",
            collapses(TWO_BIT_GAMMAS[0.9], BF16, role="primary", direction="zero"),
            *(collapses(TWO_BIT_GAMMAS[gamma], BF16, direction="zero") for gamma in (0.5, 1.3, 1.7)),
            *(collapses(TWO_BIT_GAMMAS[gamma], BF16) for gamma in (2.1, 2.5)),
            secondary(m.GROWTH_D, minus(TWO_BIT_GAMMAS[0.1], BF16), "positive", FACTOR, because=GROWS),
            regime=NEAREST_CHAINS,
            note="The seven gammas of the table, weights up to 3."),
        trial("e4m3_gammas",
            collapses(E4M3_GAMMAS[0.9], E4M3_BF16, role="primary", direction="zero"),
            *(collapses(E4M3_GAMMAS[gamma], E4M3_BF16, direction="zero") for gamma in (0.5, 1.3, 1.7)),
            *(collapses(E4M3_GAMMAS[gamma], E4M3_BF16) for gamma in (2.1, 2.5)),
            secondary(m.GROWTH_D, minus(E4M3_GAMMAS[0.1], E4M3_BF16), "positive", FACTOR, because=GROWS),
            regime=E4M3_CHAINS,
            note="If none of 24 runs collapses, p = 0.002. Holm's method rejects at this p only after five "
            "other criteria of the paper, so more policies are needed.")),
    dynamics("A6", "An error of 25% in the reference X does not matter; a smaller X gives more entropy",
        "Tab. 7",
        trial("acrl_dynamics",
            recovers_more(X_LOW, ACRL, NONE, BF16, role="primary", direction="zero", margin=0.15,
                because=X_REASON),
            recovers_more(X_HIGH, ACRL, NONE, BF16, direction="zero", margin=0.15, because=X_REASON),
            secondary(m.ENTROPY, minus(X_LOW, X_HIGH), "positive", 0.05, because=FIVE_CENTINATS),
            loses(NONE, BF16),
            regime=CHAINS),
        trial("acrl_nearest",
            recovers_more(LOW_X, ACRL_3, TWO_BITS, BF16, role="primary", direction="zero", margin=0.15,
                because=X_REASON),
            recovers_more(HIGH_X, ACRL_3, TWO_BITS, BF16, direction="zero", margin=0.15, because=X_REASON),
            secondary(m.ENTROPY, minus(LOW_X, HIGH_X), "positive", 0.05, because=FIVE_CENTINATS),
            loses(TWO_BITS, BF16),
            regime=NEAREST_CHAINS),
        trial("e4m3_gammas",
            recovers_more(E4M3_X_LOW, E4M3_GAMMAS[0.65], E4M3, E4M3_BF16, role="primary",
                direction="zero", margin=0.15, because=X_REASON),
            recovers_more(E4M3_X_HIGH, E4M3_GAMMAS[0.65], E4M3, E4M3_BF16, direction="zero",
                margin=0.15, because=X_REASON),
            secondary(m.ENTROPY, minus(E4M3_X_LOW, E4M3_X_HIGH), "positive", 0.05, because=FIVE_CENTINATS),
            loses(E4M3, E4M3_BF16),
            regime=E4M3_CHAINS)),
    dynamics("A7", "Measured under FP8, the discrepancy of a BF16 run stays between 0.011 and 0.017",
        "Tab. 8",
        trial("acrl_dynamics",
            primary(BASELINE,
                mean_of(BF16),
                "zero",
                log(0.017 / 0.011),
                because="the printed range, largest over smallest"),
            regime=NEAREST_CHAINS,
            note="The arm is the control. Ranges of single runs, 64 responses each time; the mean over "
            "policies is in acrl_tab8."),
        trial("e4m3_gammas",
            primary(E4M3_BASELINE, mean_of(E4M3_BF16), "zero", log(0.017 / 0.011),
                because="the printed range, largest over smallest"),
            regime=E4M3_CHAINS,
            note="The arm is the control.")),
    measurement("A8", "ACRL takes a thousandth of the time of a training step", "Eq. 10",
        trial("acrl_dynamics",
            stored_row("cost", "time of ACRL's weights over that of a training step", "zero", LARGEST_COST,
                because="half a percent of a step; the least of 30 timings each, one core", is_point=True))),
    dynamics("A9", "ACRL works with GRPO, PPO with a critic, and DAPO", "Tab. 4",
        trial("acrl_variants",
            primary(m.REWARD, minus(ACRL, NONE), "positive", LOSS, because=TEN_POINTS),
            secondary(m.REWARD, minus(PPO_ACRL, PPO), "positive", LOSS, because=TEN_POINTS),
            secondary(m.REWARD, minus(DAPO_ACRL, DAPO), "positive", LOSS, because=TEN_POINTS),
            regime=CHAINS,
            note="gamma 0.35, weights up to 5, X from the first steps of GRPO; the order is GRPO, PPO, "
            "DAPO. The control of each is the same algorithm without ACRL."),
        trial("acrl_algorithms",
            *(
                recovers(controlled, none, bf16, role=role, reward=m.HELD_OUT_REWARD)
                for (none, bf16, _, controlled), role in zip(
                    ALGORITHMS, ("primary", "secondary"), strict=True)
            ),
            *(
                recovers_more(controlled, tis, none, bf16, reward=m.HELD_OUT_REWARD)
                for none, bf16, tis, controlled in ALGORITHMS
            ),
            *(loses(none, bf16, m.HELD_OUT_REWARD) for none, bf16, _, _ in ALGORITHMS),
            regime=DAPO_PPO_CHAINS,
            note="As in the table: DAPO and PPO, each with BF16, no correction, token TIS and ACRL. gamma "
            "0.35, weights up to 5.")),
    dynamics("A10", "ACRL works for dense and for MoE models", "Tab. 5",
        trial("moe_dynamics",
            primary(m.REWARD, minus(MOE_ACRL, MOE), "positive", LOSS, because=TEN_POINTS),
            secondary(m.REWARD, minus(STEADY_ACRL, STEADY), "positive", LOSS, because=TEN_POINTS),
            loses(MOE, MOE_BF16),
            regime=STEADY_CHAINS,
            note="A9 tests dense policies at the learning rate of the other dense arms.")),
    identity("A11",
        "The signs of A and pi_train - pi_infer, and Y above or below X, decide whether a weight exceeds 1",
        "Fig. 3, 5",
        exact("acrl Eq. 7-9, Fig. 3, 5",
            "the four quadrants and Y above or below X decide whether the weight exceeds 1",
            checks.eight_cases,
            because="all eight cases as in the figures")),
    dynamics("A12", "Likely tokens tend to pi_train > pi_infer, unlikely ones to pi_train < pi_infer",
        "Fig. 6",
        trial("acrl_nearest",
            primary(RARE_INFER, minus(TWO_BITS, BF16), "negative", OF_TOKENS, because=FIVE_TOKENS),
            secondary(COMMON_INFER, minus(TWO_BITS, BF16), "positive", OF_TOKENS, because=FIVE_TOKENS),
            secondary(RARE_TRAIN, minus(TWO_BITS, BF16), "negative", OF_TOKENS, because=FIVE_TOKENS),
            secondary(COMMON_TRAIN, minus(TWO_BITS, BF16), "positive", OF_TOKENS, because=FIVE_TOKENS),
            regime=NEAREST_CHAINS,
            note="Sorted by pi_infer first, then by pi_train.")),
    dynamics("A13",
        "With FP8 rounded to nearest, ACRL ends with more reward than TIS, MIS and the BF16 baseline, under "
        "FP8 and BF16 inference",
        "Tab. 1, 3, 6, 12, 13",
        trial("acrl_dynamics",
            primary(m.REWARD, minus(TWO_BIT_ACRL, TWO_BIT_TIS), "positive", REWARDS, because=FIVE_POINTS),
            *(
                secondary(m.REWARD, minus(TWO_BIT_ACRL, other), "positive", REWARDS, because=FIVE_POINTS)
                for other in (TWO_BIT_MIS, BF16)
            ),
            *(
                secondary(estimand, minus(TWO_BIT_ACRL, other), "positive", REWARDS, because=FIVE_POINTS)
                for estimand in HELD_OUT.values()
                for other in (TWO_BIT_TIS, BF16)
            ),
            regime=NEAREST_CLIP_5,
            note="Token MIS in place of sequence MIS. Held-out prompts of the same task."),
        trial("acrl_nearest",
            primary(m.REWARD, minus(ACRL_3, TIS_3), "positive", REWARDS, because=FIVE_POINTS),
            *(
                secondary(m.REWARD, minus(ACRL_3, other), "positive", REWARDS, because=FIVE_POINTS)
                for other in (SEQ_MIS_3, BF16)
            ),
            regime=NEAREST_CHAINS,
            note="gamma 0.65 and weights up to 3, as printed; sequence MIS."),
        trial("acrl_difficulty",
            primary(HARDEST, minus(ACRL_3, TIS_3), "positive", REWARDS, because=FIVE_POINTS),
            *(
                secondary(HARDEST, minus(ACRL_3, other), "positive", REWARDS, because=FIVE_POINTS)
                for other in (SEQ_MIS_3, BF16)
            ),
            *(
                secondary(estimand, minus(ACRL_3, other), "positive", REWARDS, because=FIVE_POINTS)
                for estimand in HELD_OUT.values()
                for other in (TIS_3, BF16)
            ),
            loses(TWO_BITS, BF16, HELD_OUT["BF16"]),
            regime=NEAREST_BY_DIFFICULTY,
            note="Prompts for which the initial policy has the least reward, in place of the paper's harder "
            "benchmarks (Tab. 3); all prompts under both inference engines in place of MMLU-Pro (Tab. 12, "
            "13). The policies are those of `acrl_nearest`."),
        *in_e4m3(lambda none, bf16, tis, mis, acrl: (
            primary(m.HELD_OUT_REWARD, minus(acrl, tis), "positive", REWARDS, because=FIVE_POINTS),
            *(
                secondary(m.HELD_OUT_REWARD, minus(acrl, other), "positive", REWARDS, because=FIVE_POINTS)
                for other in (mis, bf16, none)
            )), note="Held-out prompts of the same task, the mean of both engines.")),
    dynamics("A14", "Too little discrepancy hurts: penalizing it in the reward lowers accuracy", "Sec. 3.1",
        trial("acrl_variants",
            primary(m.REWARD, minus(PENALTIES[1.0], NONE), "negative", REWARDS, because=FIVE_POINTS),
            *(
                secondary(m.REWARD, minus(PENALTIES[size], NONE), "negative", REWARDS, because=FIVE_POINTS)
                for size in (0.3, 3.0)
            ),
            manipulation(DISCREPANCY, minus(PENALTIES[1.0], NONE), "negative", QUARTER_MORE,
                because="the penalty lowers d: " + CHANGES),
            regime=CHAINS,
            note="The penalty is on the mean discrepancy of a batch; the reward shown excludes it.")),
    identity("A15", "The signs of A and pi_train - pi_infer decide whether entropy rises or falls",
        "Sec. 4.3, Fig. 7",
        exact("acrl Sec. 4.3", "rewarding rare tokens raises entropy, rewarding common ones lowers it",
            checks.entropy_of_update,
            because="remainder of second order within 0.05; one probability separates the two kinds",
            tolerance=0.05),
        exact("acrl Sec. 4.3, Fig. 7",
            "quadrants I and III raise entropy, II and IV lower it; ACRL raises the sum when Y > X",
            checks.entropy_quadrants,
            because="signs of the four expected changes, advantages independent of the tokens; sum under "
            "ACRL larger")),
    dynamics("A16", "Other distances (squared, KL) and a moving average as X work as well",
        "Remark 1, Sec. 6",
        trial("acrl_variants",
            primary(m.REWARD, minus(SQUARED, ACRL), "zero", LOSS, because=TEN_POINTS),
            *(
                secondary(m.REWARD, minus(variant, ACRL), "zero", LOSS, because=TEN_POINTS)
                for variant in (KL, MOVING)
            ),
            regime=CHAINS,
            note="Every 10 steps X moves 20% of the way to the mean discrepancy of these steps.")),
)
# fmt: on
A2, A3, A4, A8 = find_claims(CLAIMS, "A2", "A3", "A4", "A8")
OTHER_LEVELS = {
    level: tuple(claim.trial("acrl_dynamics").with_arms({ACRL: arm}) for claim in (A2, A3, A4))
    for level, arm in (("sequence", PER_SEQUENCE), ("batch", PER_BATCH))
}
"""The same trials with Y per sequence and per batch, which decide nothing; the verdict is that per group."""


def write_cost(run: ExperimentContext) -> None:
    """Write the table `cost`: seconds of ACRL's weights and of a training step."""
    with run.phase("cost"):
        run.table("cost", acrl_share(run.smoke))


def measure_with_levels(results: Results) -> list[Measured]:
    """Return the claims; the notes of A2, A3 and A4 hold the estimates at the other levels of Y."""
    scans = {level: measure_trials(results, trials) for level, trials in OTHER_LEVELS.items()}
    cost = results.table("cost").iloc[0]
    share = Exact(float(cost["weights_seconds"] / cost["step_seconds"]))
    trials = trials_of(CLAIMS, "acrl_dynamics")
    measured = [with_levels(each, scans) for each in measure_trials(results, trials)]
    return [*measured, Measured(A8.trial("acrl_dynamics"), (share,))]


def with_levels(measured: Measured, scans: Mapping[str, Sequence[Measured]]) -> Measured:
    """Return what was measured with the estimates of the same claim at other levels of Y in its note."""
    others = [
        f"Y per {level}: {other.primary.estimate:.3g}"
        for level, scanned in scans.items()
        for other in scanned
        if other.trial.claim == measured.trial.claim and other.primary is not None
    ]
    return replace(measured, note="; ".join(filter(None, [measured.note, *others])))


ACRL_DYNAMICS = training_experiment(
    "acrl_dynamics",
    "Does ACRL hold the discrepancy over long responses, and is it worth more than truncation?",
    CLAIMS,
    minutes=120.0,
    baseline=NONE,
    smoke=(ACRL,),
    diagnostics=DIAGNOSTICS,
    also=[trial for trials in OTHER_LEVELS.values() for trial in trials],
    write_tables=write_cost,
    collect_evidence=measure_with_levels,
)
ACRL_NEAREST = training_experiment(
    "acrl_nearest",
    "Rounded to nearest, with the clip of the paper: at which gamma and X does ACRL keep a run alive?",
    CLAIMS,
    minutes=60.0,
    baseline=TWO_BITS,
    smoke=(ACRL_3,),
    diagnostics=dict.fromkeys((TWO_BITS, BF16), ("by either engine",)),
)
ACRL_DIFFICULTY = training_experiment(
    "acrl_difficulty",
    "Rounded to nearest, does ACRL end with more reward than token TIS on hard and on easy prompts?",
    CLAIMS,
    minutes=36.0,
    baseline=TWO_BITS,
    smoke=(ACRL_3,),
    shared_diagnostics=("by difficulty",),
)
E4M3_DYNAMICS = training_experiment(
    "e4m3_dynamics",
    "Does a dense run with E4M3 rollouts collapse in 2000 steps, and what do the remedies keep?",
    (*CLAIMS, *hacking.CLAIMS, *lr.CLAIMS),
    minutes=300.0,
    baseline=E4M3,
    smoke=(E4M3_TIS,),
    shared_diagnostics=("both engines",),
)
E4M3_MOE_DYNAMICS = training_experiment(
    "e4m3_moe_dynamics",
    "Does an MoE run with E4M3 rollouts collapse in 2000 steps, and what do the remedies keep?",
    (*CLAIMS, *hacking.CLAIMS, *lr.CLAIMS),
    minutes=900.0,
    baseline=E4M3_MOE,
    smoke=(E4M3_MOE_TIS,),
    shared_diagnostics=("both engines",),
)
E4M3_GAMMAS_DYNAMICS = training_experiment(
    "e4m3_gammas",
    "With E4M3 rollouts, at which gamma and X does ACRL keep a run alive over 2000 steps?",
    CLAIMS,
    minutes=650.0,
    baseline=E4M3,
    smoke=(E4M3_GAMMAS[0.65],),
    diagnostics={E4M3_BF16: ("under E4M3",)},
)
# One compiled function serves the distances; the penalty has its own, which a smoke run does without.
ACRL_VARIANTS = training_experiment(
    "acrl_variants",
    "Does ACRL help beyond GRPO, with other distances, and what does a penalty cost?",
    CLAIMS,
    minutes=140.0,
    baseline=NONE,
    smoke=(ACRL, SQUARED),
)
ACRL_ALGORITHMS = training_experiment(
    "acrl_algorithms",
    "Does ACRL help PPO and DAPO, and more than token TIS does?",
    CLAIMS,
    minutes=100.0,
    baseline=DAPO,
    smoke=(DAPO_TIS,),
)
