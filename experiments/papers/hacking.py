"""The claims of *hacking*: mismatch distorts the objective, and the distortion feeds on itself.

Experiments: `hacking_dynamics` runs chains of 64 terms at the truncated noise level of *acrl*, at which a
run without correction collapses. `moe_dynamics` compares MoE with dense models. `softmax`, `theory` and
`theory_survival` compute without training.
"""

from experiments import arms
from experiments.arms import FORK, FORK_BF16, FORK_OTHER_DATA, FORK_SEQ_TIS, chain_arm, moe_arm
from experiments.papers.shared import (
    FIVE_PERCENT,
    TEN_PERCENT,
    THREE_ANSWERS,
    TWO_ANSWERS,
    WEAK_RANK,
    claim_makers,
    trial,
)
from experiments.studies.repeated_runs import with_forks
from experiments.studies.stages import training_experiment
from simlab.studies import estimands as m
from simlab.studies.records import (
    Contrast,
    exact,
    manipulation,
    mean_of,
    minus,
    primary,
    secondary,
    slope,
    stored_row,
)
from simlab.theory.checks import hacking_checks as checks

dynamics, measurement, identity = claim_makers("hacking")
PRINTED = "the printed average lies in our prediction interval"

# Arms of hacking_dynamics; branches of the fork are arms too.
NONE, BF16, TIS = chain_arm(arms.NONE), chain_arm(arms.BF16), chain_arm(arms.TIS)
GSPO, NOISE = chain_arm(arms.GSPO), chain_arm(arms.NOISE)
CLIPS = {high: chain_arm(name) for high, name in arms.CLIPS.items()}
DELTAS = {delta: chain_arm(name) for delta, name in arms.DELTAS.items()}
DISTORTED = DELTAS[2.0]
RAISED = {0.0: GSPO} | {delta - 1: name for delta, name in DELTAS.items() if delta > 0}
DIAGNOSTICS = {
    NONE: ("mismatch", "clipping", "clusters"),
    CLIPS[0.28]: ("clipping",),
    GSPO: ("hacking", "clipping"),
    DISTORTED: ("hacking",),
}

# Arms of moe_dynamics.
MOE, MOE_BF16 = moe_arm(arms.NONE), moe_arm(arms.BF16)
MOE_LOSS = Contrast(
    {MOE: 1.0, MOE_BF16: -1.0, NONE: -1.0, BF16: 1.0}, "({0} minus {1}) minus ({2} minus {3})"
)

# Estimands.
J_WITH_STEP = m.diagnostic_correlation("hacking_j", "step", "J and the step")
J_LATE = m.diagnostic_late("hacking_j", "J with the weights of delta = 2")
PCC = m.change("pcc", "the correlation of pi_train and pi_infer")
LARGEST = m.growth("max_rho", "the largest rho of 10 steps")
COUPLED = m.Estimand(
    "size of the rank correlation over the run of RMS log rho and entropy",
    lambda view: abs(m.rank_correlation("rms_log_rho", "entropy", "")(view)),
)
NOISY_MISMATCH = m.diagnostic_late("rms_log_rho", "RMS log rho under the engines of the base arm at the end")
BEFORE_ENTROPY = m.first_change("entropy", "rms_log_rho", "RMS log rho and entropy")
BEFORE_NORM = m.first_change("grad_norm", "rms_log_rho", "RMS log rho and gradient norm")
CLUSTERING = m.diagnostic_change("shared_values", "fraction of uncertain tokens that share their pi_infer")
FIRST = m.early_log("rms_log_rho", "RMS log rho")

COLLAPSE = manipulation(m.FALL, minus(NONE, BF16), "negative", 0.03, because=THREE_ANSWERS)

# fmt: off
CLAIMS = (
    measurement("H1",
        "A BF16 softmax over 2048 Gaussian logits spreads rho by 0.0048, between 0.9815 and 1.0189",
        "Tab. 2, Eq. 44-45",
        trial("softmax",
            *tuple(stored_row(f"table_{column}", because=PRINTED)
                for column in ("std", "mean", "max", "min"))),
        trial("theory",
            exact("ours, on hacking Tab. 2",
                "variance of the log ratio of a token from ulps: the spread of rho halves with each "
                "mantissa bit", checks.spread_against_bits,
                because="predicted within 10% of computed for FP16, BF16, E4M3 and E5M2 logits, both "
                "roundings"),
            exact("hacking Eq. 45, Tab. 2", "BF16 softmax: std of rho 0.0048", checks.softmax_spread,
                because="computed within 1e-4 of the table, predicted from ulps within 5%"))),
    measurement("H2", "BF16 probabilities fall onto few levels, the same for every seed", "Fig. 13",
        trial("softmax",
            stored_row("levels", because="less than half of the distinct values in float32"),
            stored_row("heights", because="heights within 5% over pairs of seeds"))),
    identity("H3", "The mean of 1/rho under pi_infer is at least 1, with equality only for equal policies",
        "Eq. 46",
        trial("softmax",
            stored_row("inverse", because="the smallest of all vectors is above 1"),
            stored_row("inverse_sampled", because="the 95% interval over seeds is above 1")),
        trial("theory",
            exact("hacking Eq. 46",
                "E over pi_infer of 1/rho is at least 1, with equality only for equal policies",
                checks.inverse_rho,
                because="residual against 1 + chi2 below 1e-12, above 1 for unequal rows, 1 for equal ones"),
            exact("hacking Eq. 5", "E over pi_infer of rho is 1, and its variance is chi2", checks.plain_rho,
                because="equal to the mass of pi_train on the support of pi_infer within 1e-12"))),
    dynamics("H4",
        "Mean rho of rare tokens is below 1 and falls during training; rho is widest for rare tokens",
        "Fig. 7",
        trial("theory",
            exact("hacking App. C.2", "mean rho of rare tokens is below 1 (survival bias)",
                checks.survival_curves,
                because="below 1 sorted by pi_train, above 1 sorted by pi_infer, both within 25% of the "
                "predicted bias"),
            exact("hacking Fig. 7, App. C.2",
                "mean rho of rare tokens is below 1 for truncated formats, whichever policy sorts",
                checks.survival_of_formats,
                because="below 1 in the rarest bin both ways; at least three times as far from 1 as to "
                "nearest")),
        trial("flagship", rule="mean rho of rare tokens, late minus early, negative, margin 0.05"),
        trial("theory_survival",
            rule="sign of mean rho - 1 in the rarest bin that holds 0.1% of the sampled mass; exact sums"),
        trial("hacking_dynamics",
            primary(m.RARE_RHO, mean_of(NONE), "negative", 0.01, because="1% of the IS ratio"),
            secondary(m.RARE_DRIFT, mean_of(NONE), "negative", 0.02, because="2% of the IS ratio"),
            secondary(m.RARE_SPREAD, mean_of(NONE), "positive", 0.1, because=TEN_PERCENT),
            note="Engines that truncate flatten the law, so part of it needs no survival; see "
            "theory_survival.")),
    identity("H5", "The mismatch changes the objective by the sum over positions of Cov(X, 1/rho)",
        "Eq. 10, 31",
        exact("hacking Eq. 10, 31", "J' - J is the sum over t of Cov(X_t, 1/rho_t)",
            checks.objective_gap_printed,
            because="holds when printed over exact is 1 within 5% at T = 3 and noise 0.01"),
        exact("hacking Eq. 10 corrected",
            "J' - J is the sum over t and s of Cov(X_t, 1/rho_s) to first order",
            checks.objective_gap_double_sum,
            because="error below 1% at noise 0.01 and halved with the noise; E[1/rho | prefix] = 1 within "
            "1e-12"),
        exact("hacking Eq. 10, 31", "the missing terms against T", checks.objective_gap_growth,
            because="printed is exactly 1/T of the double sum for X_t = A / T"),
        exact("hacking Eq. 28 footnote", "group-normalized advantages couple the samples",
            checks.objective_gap_groups,
            because="own and cross-sample covariances together within 2% of the exact gap")),
    identity("H6", "Independent weight noise of mean one leaves the objective unbiased", "Eq. 22",
        exact("hacking Eq. 22", "independent unit-mean weight noise leaves the objective unbiased",
            checks.unit_mean_noise,
            because="bias and relative error of the variance below 1e-10")),
    dynamics("H7",
        "TIS slows the growth of the mismatch and the fall of entropy and validates better; the growth stays",
        "Fig. 2",
        trial("flagship", rule="log growth of RMS log rho, TIS minus none, negative, margin 0.05"),
        trial("hacking_dynamics",
            primary(m.GROWTH, minus(TIS, NONE), "negative", 0.05, because=FIVE_PERCENT),
            secondary(m.ENTROPY_GROWTH, minus(TIS, NONE), "positive", 0.05, because=FIVE_PERCENT),
            secondary(m.REWARD, minus(TIS, NONE), "positive", 0.02, because=TWO_ANSWERS),
            secondary(m.GROWTH, mean_of(TIS), "positive", 0.05, because=FIVE_PERCENT))),
    dynamics("H8", "The correlation of pi_train and pi_infer falls and the largest rho rises during training",
        "Fig. 3, 9",
        trial("hacking_dynamics",
            primary(PCC, mean_of(NONE), "negative", 0.002, because="0.002 of a correlation near 1"),
            secondary(LARGEST, mean_of(NONE), "positive", 0.1, because=TEN_PERCENT))),
    dynamics("H9",
        "Stronger token clipping makes the mismatch grow faster; sequence clipping shows no growth",
        "Fig. 4, Tab. 1",
        trial("hacking_dynamics",
            primary(m.GROWTH,
                slope(CLIPS, "eps_high"),
                "negative", 0.5,
                because="4% of growth from clip 0.2 to 0.28"),
            secondary(m.GROWTH, mean_of(GSPO), "zero", 0.1, because=TEN_PERCENT))),
    dynamics("H10",
        "Raising the weight of rare tokens on top of GSPO brings the growth back, more so the higher it is",
        "Fig. 5",
        trial("hacking_dynamics",
            primary(m.GROWTH,
                slope(RAISED, "delta - 1 (0: GSPO)"),
                "positive", 0.02,
                because="2% of growth per unit of delta"),
            secondary(m.GROWTH, minus(DELTAS[3.0], GSPO), "positive", 0.05, because=FIVE_PERCENT))),
    dynamics("H11", "Taking the weight of rare tokens away brings it back as well", "Fig. 10",
        trial("hacking_dynamics",
            primary(m.GROWTH, minus(DELTAS[0.0], GSPO), "positive", 0.05, because=FIVE_PERCENT))),
    dynamics("H12", "Gaussian noise on the weights does not bring it back", "Fig. 12",
        trial("hacking_dynamics", primary(m.GROWTH, minus(NOISE, GSPO), "zero", 0.1, because=TEN_PERCENT))),
    dynamics("H13",
        "The monitor J = sum A (phi - 1) grows under distorted weights and correlates with the step",
        "Fig. 6, Eq. 23",
        trial("hacking_dynamics",
            primary(J_WITH_STEP, mean_of(DISTORTED), "positive", 0.1, because="half of a weak correlation"),
            secondary(J_LATE,
                minus(DISTORTED, GSPO),
                "positive", 0.5,
                because="half a unit of the monitor"))),
    dynamics("H14", "Collapse cannot be undone: an earlier checkpoint or other data still collapse",
        "Sec. 5.3",
        trial("hacking_dynamics",
            primary(m.REWARD, minus(FORK_OTHER_DATA, BF16), "negative", 0.03, because=THREE_ANSWERS),
            COLLAPSE)),
    dynamics("H15", "The mismatch moves before entropy and gradient norm do", "App. D, Fig. 14",
        trial("hacking_dynamics",
            primary(BEFORE_ENTROPY, mean_of(NONE), "positive", 10, because="one chunk of 10 steps"),
            secondary(BEFORE_NORM, mean_of(NONE), "positive", 10, because="one chunk of 10 steps"))),
    dynamics("H16", "Mixtures of experts are more fragile than dense models", "Sec. 1, 3.2",
        trial("moe_dynamics",
            primary(FIRST, minus(MOE, NONE), "positive", 0.05, because=FIVE_PERCENT),
            secondary(m.GROWTH, minus(MOE, NONE), "positive", 0.05, because=FIVE_PERCENT),
            secondary(m.REWARD, MOE_LOSS, "negative", 0.03, because=THREE_ANSWERS),
            note="Initial policies of both that have learned the task, paired in their order; the router "
            "is that of a BF16 inference engine.")),
    dynamics("H17", "Entropy goes wrong along with it, by collapse in some runs and by surge in others",
        "App. D.1",
        trial("hacking_dynamics",
            primary(COUPLED, minus(NONE, BF16), "positive", 0.2, because=WEAK_RANK),
            note="Coupling only, not both directions. Changed after the run, which compared with zero: an "
            "absolute correlation is positive by itself.")),
    dynamics("H18", "Probabilities of the inference engine cluster in the course of training",
        "Fig. 3b, App. C.1",
        trial("softmax", stored_row("static_levels", because="opposite if random logits show clusters")),
        trial("hacking_dynamics",
            primary(CLUSTERING, mean_of(NONE), "positive", 0.02, because="2% of the uncertain tokens"))),
    identity("H19", "Clipping adds E sum X (phi - 1) to the objective", "Eq. 13, 14",
        exact("hacking Eq. 13, 14", "clipping adds E sum X (phi - 1)", checks.clipping_gap,
            because="both sides equal within 1e-12, for both readings of phi")),
    dynamics("H20", "Freezing the mismatch, or removing the distortion, stops the feedback loop", "Fig. 8",
        trial("hacking_dynamics",
            primary(NOISY_MISMATCH, minus(FORK_BF16, FORK), "negative", 0.02, because="0.02 nats"),
            secondary(NOISY_MISMATCH, minus(FORK_SEQ_TIS, FORK), "negative", 0.02, because="0.02 nats"),
            note="Forked halfway; distortion is cut by sequence TIS.")),
)
# fmt: on

H1, H2, H3, H4 = CLAIMS[:4]
H7, H18 = CLAIMS[6], CLAIMS[17]

HACKING_DYNAMICS = training_experiment(
    "hacking_dynamics",
    "Do objective-level hacking and its remedies show in training at this noise level?",
    CLAIMS,
    minutes=60.0,
    figures=(
        *(f"hacking_fig{number}" for number in (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 17)),
        "hacking_tab1",
    ),
    baseline=NONE,
    smoke=(GSPO,),
    make=with_forks(DIAGNOSTICS, base=NONE),
    diagnosed=DIAGNOSTICS,
)
