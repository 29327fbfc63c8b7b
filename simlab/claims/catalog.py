"""The claims, one row each: in our words, where printed, and what kind of evidence settles them."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["identity", "measurement", "dynamics"]

OURS = "tensor cores"

PAPERS: dict[str, str] = {
    "H": "hacking",
    "L": "lr",
    "V": "vexact",
    "A": "acrl",
    "C": "cancel",
    "T": OURS,
}
"""Paper by the first letter of a claim's id; T are claims of ours about the adders of cards."""


@dataclass(frozen=True)
class Claim:
    """One claim: `statement` in our words, `where` it is printed, and its `kind`.

    An identity is settled by exact sums, a measurement by a static computation without training, dynamics by
    paired training runs.
    """

    statement: str
    where: str
    kind: Kind


def _identity(statement: str, where: str) -> Claim:
    return Claim(statement, where, "identity")


def _measurement(statement: str, where: str) -> Claim:
    return Claim(statement, where, "measurement")


def _dynamics(statement: str, where: str) -> Claim:
    return Claim(statement, where, "dynamics")


CLAIMS: dict[str, Claim] = {
    # hacking
    "H1": _measurement(
        "A BF16 softmax over 2048 Gaussian logits spreads rho by 0.0048, between 0.9815 and 1.0189",
        "Tab. 2, Eq. 44-45",
    ),
    "H2": _measurement(
        "BF16 probabilities fall onto few levels, the same for every seed",
        "Fig. 13",
    ),
    "H3": _identity(
        "The mean of 1/rho under pi_infer is at least 1, with equality only for equal policies",
        "Eq. 46",
    ),
    "H4": _dynamics(
        "Mean rho of rare tokens is below 1 and falls during training; rho is widest for rare tokens",
        "Fig. 7",
    ),
    "H5": _identity(
        "The mismatch changes the objective by the sum over positions of Cov(X, 1/rho)",
        "Eq. 10, 31",
    ),
    "H6": _identity(
        "Independent weight noise of mean one leaves the objective unbiased",
        "Eq. 22",
    ),
    "H7": _dynamics(
        "TIS slows the growth of the mismatch and the fall of entropy and validates better; the growth stays",
        "Fig. 2",
    ),
    "H8": _dynamics(
        "The correlation of pi_train and pi_infer falls and the largest rho rises during training",
        "Fig. 3, 9",
    ),
    "H9": _dynamics(
        "Stronger token clipping makes the mismatch grow faster; sequence clipping shows no growth",
        "Fig. 4, Tab. 1",
    ),
    "H10": _dynamics(
        "Raising the weight of rare tokens on top of GSPO brings the growth back, more so the higher it is",
        "Fig. 5",
    ),
    "H11": _dynamics(
        "Taking the weight of rare tokens away brings it back as well",
        "Fig. 10",
    ),
    "H12": _dynamics(
        "Gaussian noise on the weights does not bring it back",
        "Fig. 12",
    ),
    "H13": _dynamics(
        "The monitor J = sum A (phi - 1) grows under distorted weights and correlates with the step",
        "Fig. 6, Eq. 23",
    ),
    "H14": _dynamics(
        "Collapse cannot be undone: an earlier checkpoint or other data still collapse",
        "Sec. 5.3",
    ),
    "H15": _dynamics(
        "The mismatch moves before entropy and gradient norm do",
        "App. D, Fig. 14",
    ),
    "H16": _dynamics(
        "Mixtures of experts are more fragile than dense models",
        "Sec. 1, 3.2",
    ),
    "H17": _dynamics(
        "Entropy goes wrong along with it, by collapse in some runs and by surge in others",
        "App. D.1",
    ),
    "H18": _dynamics(
        "Probabilities of the inference engine cluster in the course of training",
        "Fig. 3b, App. C.1",
    ),
    "H19": _identity(
        "Clipping adds E sum X (phi - 1) to the objective",
        "Eq. 13, 14",
    ),
    "H20": _dynamics(
        "Freezing the mismatch, or removing the distortion, stops the feedback loop",
        "Fig. 8",
    ),
    # lr
    "L1": _dynamics(
        "log_ppl_abs_diff and gradient norm rise together, when validation collapses",
        "Fig. 1, 3",
    ),
    "L2": _dynamics(
        "A learning rate ten times smaller suppresses the mismatch",
        "Fig. 4",
    ),
    "L3": _dynamics(
        "Token TIS prevents the collapse; token MIS, sequence TIS and sequence MIS only delay it",
        "Fig. 2",
    ),
    "L4": _dynamics(
        "The step of collapse hardly depends on the size of the training set",
        "Fig. 5",
    ),
    "L5": _dynamics(
        "Length surges before collapse; halving the rate every 1.8 surge steps stabilizes, later only delays",
        "Fig. 6-10, Alg. 1",
    ),
    "L6": _dynamics(
        "The schedule rescues MIS and improves TIS",
        "Fig. 11, 12",
    ),
    "L7": _dynamics(
        "FP16 in both engines collapses as well, and the schedule stabilizes it",
        "Fig. 13",
    ),
    "L8": _identity(
        "The gradient error is at most 2 B Delta T^2",
        "Thm. 3.1, B.1",
    ),
    "L9": _identity(
        "State occupancy drifts by at most 2 t Delta",
        "Lemma B.5, Eq. 15",
    ),
    "L10": _identity(
        "Progress is at least true progress plus bias minus noise, which scale as eta, eta and eta^2",
        "Eq. 13",
    ),
    "L11": _dynamics(
        "The schedule keeps entropy and peak validation accuracy higher",
        "Sec. 4.1",
    ),
    "L12": _dynamics(
        "The mismatch is larger where the loss is sharper",
        "Sec. 3.1",
    ),
    "L13": _dynamics(
        "The factor 1.8 holds for two sizes of model",
        "Sec. 4.2",
    ),
    # vexact
    "V1": _dynamics(
        "With engines that agree bit for bit the same run stays stable",
        "review",
    ),
    "V2": _dynamics(
        "Small token-level disagreement alone, on-policy and without stabilizers, causes collapse",
        "review",
    ),
    "V3": _dynamics(
        "Collapse follows the dose of disagreement, not the apparatus that makes it",
        "review, major comment 3",
    ),
    "V4": _identity(
        "Mismatch changes the objective that is optimized: the gradient is biased",
        "review",
    ),
    "V5": _dynamics(
        "Enforcing zero mismatch leaves loss, gradient path and sampling as they were",
        "review, major comment 2",
    ),
    "V6": _dynamics(
        "Remedies differ under the same mismatch, and can be ranked",
        "review",
    ),
    "V7": _dynamics(
        "Copying log-probabilities of the rollout gives the same run as an engine that truly agrees",
        "review, major comments 1, 2",
    ),
    # acrl
    "A1": _dynamics(
        "With FP8 E4M3 rollouts and no correction the discrepancy grows and the run collapses",
        "Fig. 9, 10",
    ),
    "A2": _dynamics(
        "Under truncated FP8 no correction collapses at once, sequence MIS fails, TIS survives, ACRL is best",
        "Tab. 2",
    ),
    "A3": _dynamics(
        "Under ACRL the discrepancy stays near X, with a lower maximum and less variance than under TIS",
        "Fig. 9, 10",
    ),
    "A4": _dynamics(
        "ACRL keeps the highest entropy",
        "Fig. 8",
    ),
    "A5": _dynamics(
        "gamma from 0.5 to 1.7 is stable, from 2.1 it collapses late, at 0.1 the discrepancy grows",
        "Tab. 9",
    ),
    "A6": _dynamics(
        "X off by a quarter does not matter; a smaller X gives more entropy",
        "Tab. 7",
    ),
    "A7": _dynamics(
        "Measured under FP8, the discrepancy of a BF16 run stays between 0.011 and 0.017",
        "Tab. 8",
    ),
    "A8": _measurement(
        "ACRL costs a thousandth of a step",
        "Eq. 10",
    ),
    "A9": _dynamics(
        "ACRL works with GRPO, PPO with a critic, and DAPO",
        "Tab. 4",
    ),
    "A10": _dynamics(
        "ACRL works for dense and for MoE models",
        "Tab. 5",
    ),
    "A11": _identity(
        "The signs of A and pi - mu, and Y above or below X, decide whether a weight exceeds 1",
        "Fig. 3, 5",
    ),
    "A12": _measurement(
        "Likely tokens tend to pi > mu, unlikely ones to pi < mu",
        "Fig. 6",
    ),
    "A13": _dynamics(
        "With nearest FP8 ACRL ends above TIS, MIS and the BF16 baseline, served in FP8 or in BF16",
        "Tab. 1, 3, 6, 12, 13",
    ),
    "A14": _dynamics(
        "Too little discrepancy hurts: penalizing it in the reward lowers accuracy",
        "Sec. 3.1",
    ),
    "A15": _identity(
        "The quadrants of sign(A) and pi against mu decide whether entropy rises or falls",
        "Sec. 4.3, Fig. 7",
    ),
    "A16": _dynamics(
        "Other distances (squared, KL) and a moving average as X work as well",
        "Remark 1, Sec. 6",
    ),
    # cancel
    "C1": _identity(
        "Weights that factor over tokens cancel on a shared context and token when sum A = 0",
        "Eq. 9",
    ),
    "C2": _identity(
        "Sequence weights leave A rho (u2 - u1) / 2 on a shared token",
        "Eq. 13, 38",
    ),
    "C3": _identity(
        "The clip that depends on the sign of A breaks cancellation outside its range",
        "Eq. 75, 76",
    ),
    "C4": _identity(
        "A clip that ignores the sign restores it",
        "Eq. 82",
    ),
    "C5": _identity(
        "Uncancelled updates drift the policy by eta^2/2 g'Fg + O(eta^3)",
        "Eq. 3",
    ),
    "C6": _identity(
        "Equivalent answers drift apart in log-odds until the pair has no entropy left",
        "Cor. 3.2",
    ),
    "C7": _identity(
        "Min-Replace never flips a sign, and the spread of the weights bounds its bias",
        "Thm. C.1, K.1, Eq. 93, 96",
    ),
    "C8": _identity(
        "Orth-Proj, the non-negative projection and truncate-and-rebalance satisfy sum A s = 0",
        "Eq. 18, 51-55",
    ),
    "C9": _dynamics(
        "DFPO lowers Asym, Energy on frequent tokens, and Jitter2",
        "Eq. 20, 23, 24",
    ),
    "C10": _dynamics(
        "DFPO reaches a fixed reward with 0.91 of the compute of GSPO",
        "Tab. 2",
    ),
    "C11": _dynamics(
        "At the end DFPO beats GRPO with the sign-free clip, which beats GSPO and GRPO",
        "Tab. 1",
    ),
    "C12": _dynamics(
        "Without stop-gradient, or with plain scaling by 0.5, DFPO is worse than GSPO",
        "Tab. 3",
    ),
    "C13": _dynamics(
        "The gain of DFPO grows with the size of the group, from 2 to 16",
        "Tab. 4",
    ),
    "C14": _identity(
        "The projection does not zero the gradient",
        "Cor. 3.4, App. D",
    ),
    "C15": _identity(
        "Weights that correlate with the advantage drift common tokens in expectation",
        "Cor. G.1",
    ),
    "C16": _dynamics(
        "Learning tax shows as forgetting on held-out tasks, polluted Adam moments and more clipping",
        "App. E, K.4",
    ),
    # ours
    "T1": _measurement(
        "Models of the adders reproduce every recorded output of real tensor cores to the bit",
        "recorded vectors",
    ),
    "T2": _measurement(
        "The narrow adder of an H100 has a part in its FP8 mismatch",
        "DeepSeek-V3 Sec. 3.3.2",
    ),
    "T3": _measurement(
        "The order of the same products matters beside the FP8 mismatch",
        "our question",
    ),
    "T4": _measurement(
        "Two cards that serve the same format differ",
        "our question",
    ),
    "T5": _dynamics(
        "The adders of two cards alone, at BF16 on both sides, make an on-policy run drift",
        "our question, V2 at its purest",
    ),
}


def paper_of(claim: str) -> str:
    """Return the short name of the paper of a claim's id."""
    return PAPERS[claim[0]]
