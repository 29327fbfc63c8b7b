"""The figures: one file each, drawn from result tables alone."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FigureSource:
    """Which experiment a figure reads, which module draws it (`draw(results)`), and what it shows."""

    experiment: str
    module: str
    caption: str


FIGURES: dict[str, FigureSource] = {
    "format_error": FigureSource(
        "formats", "figures.format_error", "Relative error of every number format against its unit roundoff"
    ),
    "softmax_levels": FigureSource(
        "softmax", "figures.softmax_levels", "Sampled token probabilities in every format (hacking Fig. 13)"
    ),
    "softmax_spread": FigureSource(
        "softmax", "figures.softmax_spread", "Spread of the mismatch ratio against mantissa bits, with theory"
    ),
    "softmax_placements": FigureSource(
        "softmax", "figures.softmax_placements", "Which rounding placement gives the published table"
    ),
    "softmax_vocabulary": FigureSource(
        "softmax",
        "figures.softmax_vocabulary",
        "Spread of the mismatch ratio against vocabulary and temperature",
    ),
    "softmax_real": FigureSource("softmax", "figures.softmax_real", "Real logits against Gaussian ones"),
    "board_exact": FigureSource(
        "theory", "figures.board_exact", "Residuals and tightness of the exact claims"
    ),
    "theory_corrections": FigureSource(
        "theory_corrections",
        "figures.theory_corrections",
        "Exact bias and variance of every correction at equal mismatch",
    ),
    "theory_survival": FigureSource(
        "theory_survival", "figures.theory_survival", "Survival bias, exactly, by either policy's bins"
    ),
    "flagship": FigureSource(
        "flagship", "figures.flagship", "Reward, mismatch and survival bias with and without corrections"
    ),
    "flagship_sweep": FigureSource(
        "flagship_sweep", "figures.flagship", "The flagship in five minutes: four arms, two seeds"
    ),
    "which_card": FigureSource(
        "which_card", "figures.which_card", "Mismatch between the tensor cores of all pairs of cards"
    ),
    "which_card_shares": FigureSource(
        "which_card",
        "figures.which_card_shares",
        "Shares of format, adder and order in the mismatch of two cards",
    ),
    "length_growth": FigureSource(
        "length_growth", "figures.length_growth", "Response length and reward grow together where length pays"
    ),
    "hacking_fig2": FigureSource(
        "hacking_dynamics", "figures.hacking_fig2", "Reward, entropy and mismatch with TIS and without"
    ),
    "hacking_fig5": FigureSource(
        "hacking_dynamics",
        "figures.hacking_fig5",
        "Mismatch under injected weights and clips, and mean rho by probability",
    ),
    "lr_fig2": FigureSource(
        "lr_dynamics", "figures.lr_fig2", "Corrections, learning rates and schedules under one mismatch"
    ),
    "vexact_doses": FigureSource(
        "vexact_dynamics", "figures.vexact_doses", "Reward against three kinds of dose, and without mismatch"
    ),
    "acrl_fig9": FigureSource(
        "acrl_dynamics", "figures.acrl_fig9", "Discrepancy, entropy and reward under ACRL and over gamma"
    ),
    "cancel_fig2": FigureSource(
        "cancel_dynamics", "figures.cancel_fig2", "Reward of DFPO, its parts and its rivals, and group size"
    ),
    "leaderboard": FigureSource(
        "leaderboard", "figures.leaderboard", "Every remedy against one dose of mismatch, ranked"
    ),
    "real_pairs": FigureSource(
        "real_pairs", "figures.real_pairs", "Measured mismatch of real engines by probability of the token"
    ),
    "calibration": FigureSource(
        "real_pairs", "figures.calibration", "Log rho of emulated engines against measured ones, in quantiles"
    ),
    "quantize_throughput": FigureSource(
        "bench_quantize", "figures.quantize_throughput", "Rounding against the memory limit and its peers"
    ),
    "step_speed": FigureSource(
        "bench_step",
        "figures.step_speed",
        "Where the time of a training step goes, beside its matrix products and PyTorch",
    ),
    "sweep_cost": FigureSource(
        "bench_sweep", "figures.sweep_cost", "Cost of a sweep against runs, width, response length and steps"
    ),
    "tensor_core_throughput": FigureSource(
        "bench_tensor_cores",
        "figures.tensor_core_throughput",
        "Emulated tensor cores beside a float32 product",
    ),
    "linear_throughput": FigureSource(
        "bench_linear", "figures.linear_throughput", "Emulated products in units of a float32 product"
    ),
}
