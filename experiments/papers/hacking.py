"""The claims of *hacking*: mismatch distorts the objective, and the distortion feeds on itself.

Experiments: `hacking_dynamics` runs chains of 64 terms at the truncated noise level of *acrl*, at which a
run without correction collapses, and `rare_weights` GSPO without its rarest tokens. `moe_dynamics` compares
MoE with dense models under the same truncation, `moe_noise` at the same mismatch. `softmax`, `theory` and
`theory_survival` compute without training.
"""

from experiments.arms import chains, noise
from experiments.arms.forks import EARLY_FORK, FORK, FORK_BF16, FORK_OTHER_DATA, FORK_SEQ_TIS
from experiments.arms.settings import at_steady_rate, from_new_policies, on_chains, with_moe
from experiments.papers.shared import (
    CHANGES,
    FACTOR,
    FIVE_PERCENT_OF_RHO,
    GROWS,
    LEARNED,
    LOSS,
    ONE_CHUNK,
    QUARTER_MORE,
    TEN_POINTS,
    WEAK_RANK,
    claim_makers,
    exact_trial,
    find_claims,
    in_e4m3,
    loses,
    recovers,
    trial,
)
from experiments.regimes import (
    CHAINS,
    GAUSSIAN_NOISE,
    GSPO_CHAINS,
    NEW_CHAINS,
    NOISY_CHAINS,
    STEADY_CHAINS,
)
from experiments.studies.stages import training_experiment
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.contrasts import LeavesBand, excess, mean_of, minus, slope
from simlab.studies.records import Criterion, exact, manipulation, primary, secondary, stored_row
from simlab.theory.checks import hacking_checks as checks

dynamics, measurement, identity = claim_makers("hacking")
PLACEMENTS = "a tenth of the distance to the std under rounding everywhere (0.0074)"
TWENTIETH_OF_PRINTED = "a twentieth of the printed distance from 1"

# Arms of hacking_dynamics; branches of the fork are arms too.
NONE, BF16, TIS = on_chains(chains.NONE), on_chains(chains.BF16), on_chains(chains.TIS)
GSPO, NOISE = on_chains(chains.GSPO), on_chains(chains.NOISE)
CLIPS = {high: on_chains(arm) for high, arm in chains.CLIPS.items()}
DELTAS = {delta: on_chains(arm) for delta, arm in chains.DELTAS.items()}
DISTORTED = DELTAS[2.0]
RAREST_UNWEIGHTED = on_chains(chains.RAREST_UNWEIGHTED)
RAISED = {0.0: GSPO} | {delta - 1: arm for delta, arm in DELTAS.items() if delta > 0}
ADDED = {
    NONE: ("mismatch", "clipping", "clusters"),
    CLIPS[0.28]: ("clipping",),
    GSPO: ("hacking", "clipping"),
    DISTORTED: ("hacking",),
}
DIAGNOSTICS = {
    arm: ("validation", *ADDED.get(arm, ()))
    for arm in (NONE, BF16, TIS, GSPO, NOISE, *CLIPS.values(), *DELTAS.values())
}

# Arms of moe_dynamics.
MOE, MOE_BF16 = with_moe(chains.NONE), with_moe(chains.BF16)
DENSE, DENSE_BF16 = at_steady_rate(chains.NONE), at_steady_rate(chains.BF16)
# Arms of moe_noise, besides both BF16 controls.
NOISY_MOE, NOISY_DENSE = with_moe(noise.EQUAL_AT_FIRST), at_steady_rate(noise.EQUAL_AT_FIRST)
# Estimands.
J_WITH_STEP = m.rank_correlation("hacking_j", "step", "J and the step", m.View.diagnostic)
J_LATE = m.diagnostic_late("hacking_j", "J with the weights of delta = 2")
PCC = m.change("pcc", "the correlation of pi_train and pi_infer")
LARGEST = m.growth("max_rho", "the largest rho of 10 steps")
NOISY_MISMATCH = m.diagnostic_late_log(
    "rms_log_rho", "RMS log rho under the engines of the base arm at the end", floor=0.01
)
"""The floor is a fifth of what real engines measure in BF16: a run below it has next to no mismatch."""
BEFORE_ENTROPY = m.first_change("entropy", "rms_log_rho", "RMS log rho and entropy")
BEFORE_NORM = m.first_change("grad_norm", "rms_log_rho", "RMS log rho and gradient norm")
CLUSTERING = m.Estimand(
    "change of the fraction of uncertain tokens that share their pi_infer, minus that of pi_train",
    lambda view: view.diagnostic_change("shared_values") - view.diagnostic_change("shared_values_train"),
)

BACK = "half a unit of log growth, a factor of 1.65"
LEARNS = "0.1 of the largest reward: a run that learns nothing distorts nothing"
SOME_RUNS = "more than a quarter of the initial policies"
BOTH_WAYS = "a tenth of the initial policies each way"
GROWTH = manipulation(m.GROWTH, minus(NONE, BF16), "positive", FACTOR, because=GROWS)
"""The premise that the mismatch grows without a correction, more than in the control."""
FRESH = from_new_policies(chains.NONE), from_new_policies(chains.BF16)
CONFIRMED = (
    "The rule of `hacking_dynamics`, registered before that run, on the runs from other policies that were "
    "made for V1 and V7."
)


# fmt: off
# Criteria that are tested in several regimes.
def _rare_rho_falls(none: Arm, bf16: Arm, *_: Arm) -> tuple[Criterion, ...]:
    return (primary(m.RARE_DRIFT, minus(none, bf16), "negative", 0.05, because=FIVE_PERCENT_OF_RHO),)


def _engines_decorrelate(none: Arm, bf16: Arm, *_: Arm) -> tuple[Criterion, ...]:
    return (
        primary(PCC, minus(none, bf16), "negative", 0.01, because="a hundredth of a correlation near 1"),
        secondary(LARGEST, minus(none, bf16), "positive", FACTOR, because=GROWS),
    )


def _tis_slows_growth(none: Arm, bf16: Arm, tis: Arm, *_: Arm) -> tuple[Criterion, ...]:
    return (
        primary(m.GROWTH, minus(tis, none), "negative", FACTOR, because=GROWS),
        secondary(m.ENTROPY_GROWTH, minus(none, bf16), "negative", QUARTER_MORE, because=CHANGES),
        secondary(m.ENTROPY_GROWTH, minus(tis, none), "positive", QUARTER_MORE, because=CHANGES),
        recovers(tis, none, bf16),
        recovers(tis, none, bf16, reward=m.HELD_OUT_REWARD),
        secondary(m.GROWTH, minus(tis, bf16), "positive", FACTOR, because=GROWS),
        manipulation(m.GROWTH, minus(none, bf16), "positive", FACTOR, because=GROWS),
    )


CLAIMS = (
    measurement("H1",
        "A BF16 softmax over 2048 Gaussian logits gives rho a std of 0.0048 and a range of 0.9815 to 1.0189",
        "Tab. 2, Eq. 44-45",
        trial("softmax",
            stored_row("table_std", "std of rho minus the printed 0.0048", "zero", 2.6e-4,
                because=PLACEMENTS, reference=0.0048),
            stored_row("table_mean", "mean of rho minus the printed 1.0000", "zero", 4.8e-4,
                because="a tenth of the printed std", reference=1.0, role="secondary"),
            stored_row("table_max", "largest rho minus the printed 1.0189", "zero", 9.5e-4,
                because=TWENTIETH_OF_PRINTED, reference=1.0189, role="secondary"),
            stored_row("table_min", "smallest rho minus the printed 0.9815", "zero", 9.3e-4,
                because=TWENTIETH_OF_PRINTED, reference=0.9815, role="secondary")),
        exact_trial(
            exact("hacking Eq. 45, Tab. 2", "BF16 softmax: std of rho 0.0048", checks.softmax_rho_std,
                because="computed within 1e-4 of the table, predicted from ulps within 5%",
                tolerance=0.05),
            exact("ours, on hacking Tab. 2",
                "variance of the log ratio of a token from ulps: the spread of rho halves with each "
                "mantissa bit", checks.rho_std_against_bits,
                because="predicted within 10% of computed for FP16, BF16, E4M3 and E5M2 logits, both "
                "roundings", tolerance=0.1))),
    measurement("H2", "BF16 probabilities fall onto few levels, the same for every seed", "Fig. 13",
        trial("softmax",
            stored_row("levels", "distinct values over those in float32, minus 1", "negative", 0.5,
                because="half of the distinct values in float32", reference=1.0),
            stored_row("heights", "variation of two seeds over that of a random split, minus 1", "zero", 0.05,
                because="5% of the variation of a random split", reference=1.0, role="secondary"))),
    identity("H3", "The mean of 1/rho under pi_infer is at least 1, with equality only for equal policies",
        "Eq. 46",
        trial("softmax",
            stored_row("inverse", "smallest mean of 1/rho of all vectors, minus 1", "positive", 1e-12,
                because="rounding in float64", reference=1.0),
            stored_row("inverse_sampled", "mean of 1/rho over sampled tokens, minus 1", "positive", 1e-12,
                because="rounding in float64", reference=1.0, role="secondary"),
            note="The estimate of the first criterion is the mean over 50 vectors; the ends of its interval "
            "follow from the smallest and the largest of them."),
        exact_trial(
            exact("hacking Eq. 46",
                "E over pi_infer of 1/rho is at least 1, with equality only for equal policies",
                checks.inverse_rho,
                because="residual against 1 + chi2 below 1e-12, above 1 for unequal rows, 1 for equal ones"),
            exact("hacking Eq. 5", "E over pi_infer of rho is 1, and its variance is chi2", checks.plain_rho,
                because="equal to the mass of pi_train on the support of pi_infer within 1e-12"))),
    dynamics("H4",
        "Mean rho of rare tokens is below 1 and falls during training; rho varies most for rare tokens",
        "Fig. 7",
        exact_trial(
            exact("hacking App. C.2", "mean rho of rare tokens is below 1 (survival bias)",
                checks.survival_curves,
                because="below 1 sorted by pi_train, above 1 sorted by pi_infer, both within 25% of the "
                "predicted bias", tolerance=0.25),
            exact("hacking Fig. 7, App. C.2",
                "mean rho of rare tokens is below 1 for truncated formats, whichever policy sorts",
                checks.survival_of_formats,
                because="below 1 in the rarest bin both ways; at least three times as far from 1 as to "
                "nearest", tolerance=1 / 3),
            note="Nothing is trained: this is the first part of the statement alone."),
        trial("theory_survival",
            stored_row("rarest",
                "mean rho minus 1 in the rarest bin of 0.1% of the mass, sorted by pi_train, "
                "noise of 0.2 on the logits", "negative", 0.01, because="1% of the IS ratio", is_point=True),
            regime=GAUSSIAN_NOISE),
        trial("hacking_dynamics",
            *_rare_rho_falls(NONE, BF16),
            secondary(m.RARE_RHO, minus(NONE, BF16), "negative", 0.05, because=FIVE_PERCENT_OF_RHO),
            secondary(m.RARE_STD_RHO, minus(NONE, BF16), "positive", FACTOR, because=GROWS),
            regime=CHAINS,
            note="The control has almost no mismatch, so survival bias under a growing mismatch may explain "
            "all of it. Noise of equal size, which would separate the two, was not recorded."),
        trial("identical_engines", *_rare_rho_falls(*FRESH),
            regime=NEW_CHAINS, note=CONFIRMED, is_exploratory=True),
        *in_e4m3(_rare_rho_falls, is_exploratory=True)),
    identity("H5", "The mismatch changes the objective by the sum over positions of Cov(X, 1/rho)",
        "Eq. 10, 31",
        exact("hacking Eq. 10, 31", "J' - J is the sum over t of Cov(X_t, 1/rho_t)",
            checks.objective_gap_printed,
            because="holds when printed over exact is 1 within 5% at T = 3 and noise 0.01", tolerance=0.05),
        exact("hacking Eq. 10 corrected",
            "J' - J is the sum over t and s of Cov(X_t, 1/rho_s) to first order",
            checks.objective_gap_double_sum,
            because="error below 1% at noise 0.01 and halved with the noise; E[1/rho | prefix] = 1 within "
            "1e-12", tolerance=0.01),
        exact("hacking Eq. 10, 31", "the missing terms against T", checks.objective_gap_growth,
            because="printed is exactly 1/T of the double sum for X_t = A / T"),
        exact("hacking Eq. 28 footnote", "group-normalized advantages couple the samples",
            checks.objective_gap_groups,
            because="own and cross-sample covariances together within 2% of the exact gap", tolerance=0.02)),
    identity("H6", "Independent weight noise of mean one leaves the objective unbiased", "Eq. 22",
        exact("hacking Eq. 22", "independent unit-mean weight noise leaves the objective unbiased",
            checks.unit_mean_noise,
            because="bias and relative error of the variance below 1e-10", tolerance=1e-10)),
    dynamics("H7",
        "TIS slows the growth of the mismatch and the fall of entropy and raises validation reward; the "
        "mismatch still grows",
        "Fig. 2",
        trial("hacking_dynamics", *_tis_slows_growth(NONE, BF16, TIS),
            regime=CHAINS,
            note="The second criterion is the premise of the third: entropy falls without TIS."),
        *in_e4m3(_tis_slows_growth, is_exploratory=True)),
    dynamics("H8", "The correlation of pi_train and pi_infer falls and the largest rho rises during training",
        "Fig. 3, 9",
        trial("hacking_dynamics", *_engines_decorrelate(NONE, BF16), regime=CHAINS),
        trial("identical_engines", *_engines_decorrelate(*FRESH),
            regime=NEW_CHAINS, note=CONFIRMED, is_exploratory=True),
        *in_e4m3(_engines_decorrelate, is_exploratory=True)),
    dynamics("H9",
        "Stronger token clipping makes the mismatch grow faster; under sequence clipping it does not grow",
        "Fig. 4, Tab. 1",
        trial("hacking_dynamics",
            primary(m.GROWTH, minus(CLIPS[0.2], CLIPS[0.28]), "positive", FACTOR, because=GROWS),
            secondary(m.GROWTH, minus(CLIPS[0.2], CLIPS[0.24]), "positive", FACTOR, because=GROWS),
            secondary(m.GROWTH, minus(GSPO, CLIPS[0.2]), "negative", FACTOR, because=GROWS),
            secondary(m.GROWTH, minus(GSPO, BF16), "zero", FACTOR, because=GROWS),
            GROWTH,
            regime=CHAINS)),
    dynamics("H10",
        "A raised weight of rare tokens under GSPO makes the mismatch grow again, more so the higher it is",
        "Fig. 5",
        trial("hacking_dynamics",
            primary(m.GROWTH, minus(DELTAS[3.0], GSPO), "positive", 0.5, because=BACK),
            secondary(m.GROWTH, slope(RAISED, "delta - 1 (0: GSPO)"), "positive", 0.25,
                because="half of that margin per unit of delta"),
            regime=CHAINS)),
    dynamics("H11", "A weight of zero for rare tokens under GSPO makes the mismatch grow again",
        "Fig. 10",
        trial("hacking_dynamics",
            primary(m.GROWTH, minus(DELTAS[0.0], GSPO), "positive", 0.5, because=BACK),
            manipulation(m.REWARD_CHANGE, mean_of(DELTAS[0.0]), "positive", LOSS, because=LEARNS),
            regime=CHAINS),
        trial("rare_weights",
            primary(m.GROWTH, minus(RAREST_UNWEIGHTED, GSPO), "positive", 0.5, because=BACK),
            manipulation(m.REWARD_CHANGE, mean_of(RAREST_UNWEIGHTED), "positive", LOSS, because=LEARNS),
            regime=GSPO_CHAINS,
            note="The weight is zero for tokens below 0.003, not 0.1. In a pilot from four other policies "
            "runs learned at 0.003 and 0.01, most at 0.003, and not at 0.03.")),
    dynamics("H12", "Gaussian noise on the token weights of GSPO does not make the mismatch grow again",
        "Fig. 12",
        trial("hacking_dynamics",
            primary(m.GROWTH, minus(NOISE, GSPO), "zero", 0.5, because=BACK),
            regime=CHAINS)),
    dynamics("H13",
        "The monitor J = sum A (phi - 1) grows under distorted weights and correlates with the step",
        "Fig. 6, Eq. 23",
        trial("hacking_dynamics",
            primary(J_WITH_STEP, minus(DISTORTED, GSPO), "positive", 0.2, because=WEAK_RANK),
            secondary(J_LATE, minus(DISTORTED, GSPO), "positive", 0.5, because="half a unit of the monitor"),
            regime=CHAINS)),
    dynamics("H14",
        "Collapse cannot be undone: training from an earlier checkpoint or on other data still collapses",
        "Sec. 5.3",
        trial("hacking_dynamics",
            recovers(FORK_OTHER_DATA, FORK, BF16, role="primary", direction="zero"),
            secondary(m.GROWTH_AFTER_FORK, minus(FORK_OTHER_DATA, FORK), "zero", FACTOR, because=GROWS),
            recovers(EARLY_FORK, FORK, BF16, direction="zero"),
            recovers(EARLY_FORK, FORK, BF16, direction="zero", reward=m.HELD_OUT_REWARD),
            loses(FORK, BF16),
            regime=CHAINS,
            note="Forked halfway; the early fork after a quarter of the steps. Both draw other prompts and "
            "samples than the run that they continue.")),
    dynamics("H15", "The mismatch changes before entropy and gradient norm do", "App. D, Fig. 14",
        trial("hacking_dynamics",
            primary(BEFORE_ENTROPY, minus(DELTAS[3.0], GSPO), "positive", 10, because=ONE_CHUNK),
            secondary(BEFORE_NORM, minus(DELTAS[3.0], GSPO), "positive", 10, because=ONE_CHUNK),
            secondary(BEFORE_ENTROPY, minus(NONE, BF16), "positive", 10, because=ONE_CHUNK),
            regime=CHAINS,
            note="The figure is about the runs with delta; their control is GSPO.")),
    dynamics("H16", "Mixtures of experts are more fragile than dense models", "Sec. 1, 3.2",
        trial("moe_dynamics",
            primary(m.REWARD, excess(MOE, MOE_BF16, DENSE, DENSE_BF16), "negative", LOSS,
                because=TEN_POINTS),
            secondary(m.GROWTH, excess(MOE, MOE_BF16, DENSE, DENSE_BF16), "positive", FACTOR, because=GROWS),
            manipulation(m.FIRST_MISMATCH, minus(MOE, DENSE), "at most", QUARTER_MORE,
                because="the MoE must not begin with more noise: " + CHANGES),
            regime=STEADY_CHAINS,
            note="Policies of both that have learned the task, paired in their order; the router is that of "
            "a BF16 inference engine."),
        trial("moe_noise",
            primary(LEARNED, excess(NOISY_MOE, MOE_BF16, NOISY_DENSE, DENSE_BF16), "negative", LOSS,
                because=TEN_POINTS),
            secondary(m.GROWTH, excess(NOISY_MOE, MOE_BF16, NOISY_DENSE, DENSE_BF16), "positive", FACTOR,
                because=GROWS),
            manipulation(m.FIRST_MISMATCH, minus(NOISY_MOE, NOISY_DENSE), "zero", QUARTER_MORE,
                because="as large: " + CHANGES),
            loses(NOISY_MOE, MOE_BF16, LEARNED),
            regime=NOISY_CHAINS,
            note="The inference engine has weights with fixed relative noise, those of the router included. "
            "Its scale is measured for each policy, so that both of a pair begin with the same RMS log rho, "
            "and stays constant. The pairs are those of `moe_dynamics`. A pilot from other policies, three "
            "dense ones and one MoE that had learned the task, showed that the scales reach the mismatch and "
            "that both models lose reward.")),
    dynamics("H17", "With the mismatch, entropy collapses in some runs and surges in others",
        "App. D.1",
        trial("hacking_dynamics",
            primary(m.ENTROPY, LeavesBand(NONE, BF16, 2.0), "positive", 0.25, because=SOME_RUNS),
            secondary(m.ENTROPY, LeavesBand(NONE, BF16, 2.0, 1), "positive", 0.1, because=BOTH_WAYS),
            secondary(m.ENTROPY, LeavesBand(NONE, BF16, 2.0, -1), "positive", 0.1, because=BOTH_WAYS),
            regime=CHAINS)),
    dynamics("H18", "Probabilities of the inference engine cluster in the course of training",
        "Fig. 3b, App. C.1",
        trial("hacking_dynamics",
            primary(CLUSTERING, mean_of(NONE), "positive", 0.05, because="5% of the uncertain tokens"),
            regime=CHAINS,
            note="The control is pi_train of the same run. Rounded logits take few values before "
            "any training (H2).")),
    identity("H19", "Clipping adds E sum X (phi - 1) to the objective", "Eq. 13, 14",
        exact("hacking Eq. 13, 14", "clipping adds E sum X (phi - 1)", checks.clipping_gap,
            because="both sides equal within 1e-12, for both readings of phi")),
    dynamics("H20", "Freezing the mismatch, or removing the distortion, stops the feedback loop", "Fig. 8",
        trial("hacking_dynamics",
            primary(NOISY_MISMATCH, minus(FORK_BF16, FORK), "negative", FACTOR, because=GROWS),
            secondary(NOISY_MISMATCH, minus(FORK_SEQ_TIS, FORK), "negative", FACTOR, because=GROWS),
            GROWTH,
            regime=CHAINS,
            note="Forked halfway; distortion is cut by sequence TIS. To stop growth is not to undo it.")),
)
# fmt: on

H1, H2, H3, H4 = find_claims(CLAIMS, "H1", "H2", "H3", "H4")

HACKING_DYNAMICS = training_experiment(
    "hacking_dynamics",
    "Do objective-level hacking and its remedies show in training at this noise level?",
    CLAIMS,
    minutes=80.0,
    baseline=NONE,
    smoke=(GSPO,),
    diagnostics=DIAGNOSTICS,
    shared_diagnostics=(),
)
RARE_WEIGHTS = training_experiment(
    "rare_weights",
    "Does GSPO that ignores the rarest tokens, and still learns, make the mismatch grow again?",
    CLAIMS,
    minutes=12.0,
    baseline=GSPO,
    shared_diagnostics=("both engines",),
)
MOE_NOISE = training_experiment(
    "moe_noise",
    "Do MoE lose more reward than dense models to weight noise if both begin with the same mismatch?",
    CLAIMS,
    minutes=25.0,
    baseline=NOISY_MOE,
    shared_diagnostics=("both engines",),
)
