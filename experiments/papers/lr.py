"""Claims of *lr*: the learning rate controls the mismatch, and schedules prevent a collapse.

Experiments: `lr_dynamics` runs chains of 64 terms at the truncated noise level of *acrl*, at which a run
without correction collapses. `length_dynamics` runs a task in which longer responses get more reward.
Identities are in `theory`.
"""

from math import log

from experiments.arms import chains, length, on_policy
from experiments.arms.changes import at_mean_rate, with_halving
from experiments.arms.settings import on_chains, on_recurrences, on_wide_recurrences
from experiments.papers.shared import (
    FACTOR,
    FIVE_POINTS,
    GROWS,
    HALF,
    LOSS,
    REWARDS,
    TEN_POINTS,
    WEAK_RANK,
    claim_makers,
    collapses,
    in_e4m3,
    loses,
    recovers,
    recovers_more,
    trial,
)
from experiments.regimes import (
    CHAINS,
    CORRECTED_RECURRENCE,
    FP16_CHAINS,
    RECURRENCE,
    RLOO_CHAINS,
    RLOO_FP16_CHAINS,
    WIDE_RECURRENCE,
)
from experiments.studies.stages import training_experiment
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.contrasts import CollapsesSooner, mean_of, minus
from simlab.studies.records import COLLAPSE_TIME, Criterion, exact, manipulation, primary, secondary
from simlab.theory.checks import lr_checks as checks

dynamics, _, identity = claim_makers("lr")

# Arms of lr_dynamics.
NONE, BF16, FP16 = on_chains(chains.NONE), on_chains(chains.BF16), on_chains(chains.FP16)
TIS, MIS = on_chains(chains.TIS), on_chains(chains.MIS)
SEQ_TIS, SEQ_MIS = on_chains(chains.SEQ_TIS), on_chains(chains.SEQ_MIS)
SLOW, FEW = on_chains(chains.SLOW), on_chains(chains.FEW)
HALVED = with_halving(NONE)
DIAGNOSTICS = {NONE: ("mismatch", "curvature"), BF16: ("mismatch", "curvature")}

# Arms of lr_on_policy, the setting of the paper.
RLOO, RLOO_BF16 = on_chains(on_policy.RLOO), on_chains(on_policy.RLOO_BF16)
RLOO_FEW, RLOO_SLOW = on_chains(on_policy.RLOO_FEW), on_chains(on_policy.RLOO_SLOW)
RLOO_FP16, RLOO_HALVED = on_chains(on_policy.RLOO_FP16), with_halving(RLOO)
RLOO_TIS, RLOO_MIS = on_chains(on_policy.RLOO_TIS), on_chains(on_policy.RLOO_MIS)
RLOO_SEQ_TIS, RLOO_SEQ_MIS = on_chains(on_policy.RLOO_SEQ_TIS), on_chains(on_policy.RLOO_SEQ_MIS)

# Arms of length_dynamics.
SCHEDULES = length.FREE, length.BF16, length.TRIGGERED, length.TRIGGERED_LATE
FREE, LENGTH_BF16, TRIGGERED, TRIGGERED_LATE = map(on_recurrences, SCHEDULES)
WIDE, WIDE_BF16, WIDE_TRIGGERED, WIDE_LATE = map(on_wide_recurrences, SCHEDULES)
# Arms of length_corrections, with LENGTH_BF16.
FREE_MIS, FREE_TIS = on_recurrences(chains.MIS), on_recurrences(chains.TIS)
MIS_TRIGGERED = length.with_triggered_halving(FREE_MIS)
TIS_TRIGGERED = length.with_triggered_halving(FREE_TIS)

# Estimands.
LPD_WITH_NORM = m.rank_correlation("abs_seq_log_ratio", "grad_norm", "abs_seq_log_ratio and gradient norm")
LPD_WITH_REWARD = m.rank_correlation("abs_seq_log_ratio", "reward", "abs_seq_log_ratio and reward")
LPD = m.late_log("abs_seq_log_ratio", "abs_seq_log_ratio")
SHARPNESS = m.detrended_correlation("hessian_top", "rms_log_rho", "top Hessian eigenvalue and RMS log rho")
LONGER = m.largest_growth("response_length", "the response length")
TERMS, FOUR_TERMS = 4 / 128, "four right terms of 128"
DOUBLES = "a surge: the length doubles; in the paper it triples"


def surges(arm: Arm) -> Criterion:
    """Return the premise that the responses of an arm become longer."""
    return manipulation(LONGER, mean_of(arm), "positive", log(2), because=DOUBLES)


def loses_terms(untreated: Arm, control: Arm, reward: m.Estimand = m.REWARD) -> Criterion:
    """Return the premise that the untreated arm loses reward, where a right term is worth 1/128."""
    because = f"{FOUR_TERMS}; BF16 reached 15 in trial runs"
    return manipulation(reward, minus(untreated, control), "negative", TERMS, because=because)


def has_mismatch_of_its_bits(half: Arm, control: Arm) -> Criterion:
    """Return the premise that the mismatch of FP16 is within a factor of eight of that of BF16."""
    because = "FP16 has three more mantissa bits than BF16, which explains an eighth of its mismatch"
    return manipulation(m.FIRST_MISMATCH, minus(half, control), "zero", log(8), because=because)


KEEPS_ENTROPY = "a factor of 1.5 in entropy"
LOSES_ENTROPY = "entropy is lost without the schedule: a factor of 1.5"
COLLAPSED = collapses(NONE, BF16, role="manipulation")
LIKELY = "sooner as a rule: in three of four pairs"

# fmt: off
CLAIMS = (
    dynamics("L1",
        "The sequence log ratio (log_ppl_abs_diff) and the gradient norm rise together when validation "
        "collapses",
        "Fig. 1, 3",
        *(
            trial(name,
                primary(LPD_WITH_NORM, minus(none, bf16), "positive", 0.2, because=WEAK_RANK),
                secondary(LPD_WITH_REWARD, minus(none, bf16), "negative", 0.2, because=WEAK_RANK),
                *validated,
                regime=regime,
                note=note)
            for name, none, bf16, regime, validated, note in (
                ("lr_dynamics", NONE, BF16, CHAINS, (),
                    "Reward of the inference engine on training prompts stands for validation."),
                ("lr_on_policy", RLOO, RLOO_BF16, RLOO_CHAINS,
                    (secondary(m.HELD_OUT_REWARD, minus(RLOO, RLOO_BF16), "negative", LOSS,
                        because=TEN_POINTS),),
                    "The third criterion tests that held-out reward falls."))
        )),
    dynamics("L2", "A learning rate ten times smaller suppresses the mismatch", "Fig. 4",
        *(
            trial(name,
                primary(m.GROWTH_LPD, minus(slow, none), "negative", FACTOR, because=GROWS),
                secondary(LPD, minus(slow, none), "negative", FACTOR, because=GROWS),
                manipulation(m.GROWTH_LPD, minus(none, bf16), "positive", FACTOR, because=GROWS),
                regime=regime,
                note="At equal steps; with a tenth of the rate a run also learns less.")
            for name, slow, none, bf16, regime in (
                ("lr_dynamics", SLOW, NONE, BF16, CHAINS),
                ("lr_on_policy", RLOO_SLOW, RLOO, RLOO_BF16, RLOO_CHAINS))
        )),
    dynamics("L3", "Token TIS prevents the collapse; token MIS, sequence TIS and sequence MIS only delay it",
        "Fig. 2",
        *(
            trial(name,
                recovers(tis, none, bf16, role="primary", margin=HALF),
                *(recovers_more(tis, other, none, bf16) for other in others),
                *validated,
                loses(none, bf16),
                regime=regime)
            for name, none, bf16, tis, others, regime, validated in (
                ("lr_dynamics", NONE, BF16, TIS, (MIS, SEQ_TIS, SEQ_MIS), CHAINS, ()),
                ("lr_on_policy", RLOO, RLOO_BF16, RLOO_TIS, (RLOO_MIS, RLOO_SEQ_TIS, RLOO_SEQ_MIS),
                    RLOO_CHAINS,
                    (recovers(RLOO_TIS, RLOO, RLOO_BF16, margin=HALF, reward=m.HELD_OUT_REWARD),)))
        ),
        *in_e4m3(
            lambda none, bf16, tis, _mis, _acrl: (
                recovers(tis, none, bf16, role="primary", margin=HALF, reward=m.HELD_OUT_REWARD),
                loses(none, bf16, m.HELD_OUT_REWARD)),
            is_exploratory=True)),
    dynamics("L4", "The step of collapse hardly depends on the size of the training set", "Fig. 5",
        trial("lr_dynamics",
            primary(COLLAPSE_TIME, CollapsesSooner(FEW, NONE, BF16), "zero", 0.25, because=LIKELY),
            COLLAPSED,
            regime=CHAINS,
            note="One arm trains on 2.5% of the prompts."),
        trial("lr_on_policy",
            primary(COLLAPSE_TIME, CollapsesSooner(RLOO_FEW, RLOO, RLOO_BF16), "zero", 0.25, because=LIKELY),
            collapses(RLOO, RLOO_BF16, role="manipulation"),
            regime=RLOO_CHAINS,
            note="25% of the prompts.")),
    dynamics("L5",
        "Length surges before a collapse; halving the rate with a period of 1.8 times the step of the surge "
        "stabilizes, a longer period only delays",
        "Fig. 6-10, Alg. 1",
        trial("length_dynamics",
            recovers(TRIGGERED, FREE, LENGTH_BF16, role="primary"),
            recovers(TRIGGERED, FREE, LENGTH_BF16, reward=m.HELD_OUT_REWARD),
            recovers_more(TRIGGERED, TRIGGERED_LATE, FREE, LENGTH_BF16),
            surges(FREE),
            loses_terms(FREE, LENGTH_BF16),
            regime=RECURRENCE,
            note="The surge is the first of three steps in a row with twice the length of the first steps. "
            "The reward is the share of 128 terms, so that a longer right answer is a better one. Whether a "
            "surge brings the collapse nearer is not tested: under BF16 no run collapses.")),
    dynamics("L6", "The schedule rescues MIS and improves TIS", "Fig. 11, 12",
        trial("lr_dynamics",
            recovers(with_halving(MIS), MIS, BF16, role="primary"),
            recovers(with_halving(TIS), TIS, BF16),
            recovers_more(with_halving(MIS), at_mean_rate(MIS), MIS, BF16),
            loses(MIS, BF16),
            regime=CHAINS,
            note="The third criterion compares halving with a constant rate of the same mean."),
        trial("lr_on_policy",
            recovers(with_halving(RLOO_MIS), RLOO_MIS, RLOO_BF16, role="primary"),
            recovers(with_halving(RLOO_TIS), RLOO_TIS, RLOO_BF16),
            recovers_more(with_halving(RLOO_MIS), at_mean_rate(RLOO_MIS), RLOO_MIS, RLOO_BF16),
            recovers(with_halving(RLOO_MIS), RLOO_MIS, RLOO_BF16, reward=m.HELD_OUT_REWARD),
            loses(RLOO_MIS, RLOO_BF16),
            regime=RLOO_CHAINS),
        trial("length_corrections",
            recovers(MIS_TRIGGERED, FREE_MIS, LENGTH_BF16, role="primary", reward=m.HELD_OUT_REWARD),
            secondary(m.HELD_OUT_REWARD, minus(TIS_TRIGGERED, FREE_TIS), "positive", TERMS,
                because=FOUR_TERMS),
            secondary(LPD, minus(TIS_TRIGGERED, FREE_TIS), "negative", FACTOR, because=GROWS),
            surges(FREE_MIS),
            loses_terms(FREE_MIS, LENGTH_BF16, m.HELD_OUT_REWARD),
            regime=CORRECTED_RECURRENCE,
            note="The schedule of the paper: halving with a period of 1.8 times the step of the surge.")),
    dynamics("L7", "FP16 in both engines collapses as well, and the schedule stabilizes it", "Fig. 13",
        trial("lr_dynamics",
            collapses(FP16, BF16, role="primary"),
            recovers(with_halving(FP16), FP16, BF16),
            has_mismatch_of_its_bits(FP16, BF16),
            regime=FP16_CHAINS),
        trial("lr_on_policy",
            collapses(RLOO_FP16, RLOO_BF16, role="primary"),
            recovers(with_halving(RLOO_FP16), RLOO_FP16, RLOO_BF16, reward=m.HELD_OUT_REWARD),
            has_mismatch_of_its_bits(RLOO_FP16, RLOO_BF16),
            regime=RLOO_FP16_CHAINS)),
    identity("L8", "The gradient error is at most 2 B Delta T^2", "Thm. 3.1, B.1",
        exact("lr Thm. 3.1, B.1", "gradient error is at most 2 B Delta T^2", checks.quadratic_bound,
            because="error / bound at most 1 under the worst 0/1 rewards found, T = 1..8, three ways to "
            "share contexts",
            slow=True),
        exact("lr Thm. 3.1, B.1", "the same for every pair of engines", checks.engine_gradient_error,
            because="error / bound at most 1 for all pairs of engines that disagree, T = 2..6",
            slow=True),
        exact("lr Thm. 3.1", "the error reaches the growth with T^2", checks.growth,
            because="holds when the largest measured exponent is within 0.2 of 2", tolerance=0.2,
            slow=True),
        exact("ours, on lr Thm. 3.1",
            "gradient error is at most sqrt(T f) sqrt((1 + chi2)^T - 1): linear in T", checks.linear_bound,
            because="error / bound at most 1 on the same cases",
            slow=True),
        exact("lr Thm. B.1, proof", "the bound with log pi_infer differentiated", checks.bound_of_proof,
            because="holds when error / bound is at most 1 on a smooth engine with logits + e sin(k z)",
            slow=True)),
    identity("L9", "State occupancy drifts by at most 2 t Delta", "Lemma B.5, Eq. 15",
        exact("lr Eq. 15", "occupancy drift is at most 2 t Delta", checks.drift_of_states,
            because="drift / bound at most 1 for t = 1..6"),
        exact("lr Eq. 15", "the same for every pair of engines", checks.engine_drift,
            because="drift / bound at most 1 for all pairs of engines that disagree, t = 1..5",
            slow=True)),
    identity("L10",
        "Progress is at least true progress plus bias minus noise, which scale as eta, eta and eta^2",
        "Eq. 13",
        exact("lr Eq. 13", "expected progress is at least true progress + bias effect - noise penalty",
            checks.progress,
            because="change above the bound at seven step sizes from 0.001 to 1, with a rigorous L"),
        exact("lr Eq. 13", "true progress, bias and noise scale as eta, eta and eta^2", checks.exponents,
            because="exponents within 0.05 of 1, 1 and 2 at the two smallest step sizes", tolerance=0.05)),
    dynamics("L11", "The schedule keeps entropy and peak validation accuracy higher", "Sec. 4.1",
        trial("lr_dynamics",
            primary(m.LOG_ENTROPY, minus(HALVED, NONE), "positive", FACTOR, because=KEEPS_ENTROPY),
            secondary(m.PEAK_REWARD, minus(HALVED, NONE), "positive", REWARDS, because=FIVE_POINTS),
            manipulation(m.LOG_ENTROPY, minus(NONE, BF16), "negative", FACTOR, because=LOSES_ENTROPY),
            regime=CHAINS,
            note="Reward of the inference engine stands for validation."),
        trial("lr_on_policy",
            primary(m.LOG_ENTROPY, minus(RLOO_HALVED, RLOO), "positive", FACTOR, because=KEEPS_ENTROPY),
            secondary(m.PEAK_HELD_OUT, minus(RLOO_HALVED, RLOO), "positive", REWARDS, because=FIVE_POINTS),
            manipulation(m.LOG_ENTROPY, minus(RLOO, RLOO_BF16), "negative", FACTOR, because=LOSES_ENTROPY),
            regime=RLOO_CHAINS)),
    dynamics("L12", "The mismatch is larger where the loss is sharper", "Sec. 3.1",
        trial("lr_dynamics",
            primary(SHARPNESS, minus(NONE, BF16), "positive", 0.2, because=WEAK_RANK),
            regime=CHAINS,
            note="The linear trend over the steps is removed from both curves.")),
    dynamics("L13", "A period of 1.8 times the step of the surge works for two sizes of model", "Sec. 4.2",
        trial("length_wide_dynamics",
            recovers(WIDE_TRIGGERED, WIDE, WIDE_BF16, role="primary"),
            recovers(WIDE_TRIGGERED, WIDE, WIDE_BF16, reward=m.HELD_OUT_REWARD),
            recovers_more(WIDE_TRIGGERED, WIDE_LATE, WIDE, WIDE_BF16),
            surges(WIDE),
            loses_terms(WIDE, WIDE_BF16),
            regime=WIDE_RECURRENCE,
            note="The same at width 64 is L5.")),
)
# fmt: on

LR_DYNAMICS = training_experiment(
    "lr_dynamics",
    "Is mismatch a matter of the learning rate, and do schedules remove it at this noise level?",
    CLAIMS,
    minutes=90.0,
    baseline=NONE,
    smoke=(TIS,),
    diagnostics=DIAGNOSTICS,
)
LR_ON_POLICY = training_experiment(
    "lr_on_policy",
    "Do the claims hold in the setting of the paper: on-policy, RLOO, clip 0.2 and 0.28?",
    CLAIMS,
    minutes=70.0,
    baseline=RLOO,
    smoke=(RLOO_TIS,),
)
LENGTH_DYNAMICS = training_experiment(
    "length_dynamics",
    "If longer responses get more reward, does length surge before a collapse, and does the triggered "
    "schedule help?",
    CLAIMS,
    minutes=110.0,
    baseline=FREE,
)
LENGTH_CORRECTIONS = training_experiment(
    "length_corrections",
    "If longer responses get more reward, does the triggered schedule help runs with token MIS or TIS?",
    CLAIMS,
    minutes=60.0,
    baseline=FREE_MIS,
)
LENGTH_WIDE_DYNAMICS = training_experiment(
    "length_wide_dynamics",
    "Does the triggered schedule help a wider model at the same factor?",
    CLAIMS,
    minutes=165.0,
    baseline=WIDE,
)
