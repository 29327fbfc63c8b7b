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
