"""Formulas of the API reference, by package or catalog and name, in LaTeX; `build.py` makes them MathML.

A, r and rho are a token's advantage, PPO ratio and IS ratio; i counts the n sequences, t the T_i tokens of
one, and a bar is a mean over all tokens of the batch.
"""

RATIOS = r"r = \pi_\theta / \pi_{train}, \quad \rho = \pi_{train} / \pi_{infer}"
CLIPPED = r"\min(r A, \, \mathrm{clip}(r, 1 - \epsilon_l, 1 + \epsilon_h) A)"
DIFFERENCE = r"|\pi_{train} - \pi_{infer}|"
SEQUENCE = r"s = \left(\prod_t r_{t}\right)^{1/T}"

INTRODUCTIONS = {
    "simlab.objectives": r"J = \mathrm{agg}_{i,t} \left(A_{it} \, u(r_{it}, A_{it}) \, w(\rho_{it})\right), "
    r"\quad c_{it} = \frac{\partial J}{\partial \log \pi_\theta(y_{it})}, \quad " + RATIOS,
    "simlab.metrics": RATIOS + r" = e^{\log \pi_{train} - \log \pi_{infer}}",
    "simlab.formats": r"Q(x) = \mathrm{sign}(x) \, \mathrm{round}\left(|x| / 2^{e - m}\right) 2^{e - m}, "
    r"\quad e = \max(\lfloor \log_2 |x| \rfloor, e_{min}), \quad \left|Q(x) - x\right| \le 2^{-(m+1)} |x|",
}
"""A formula under the title of a package's page."""

FORMULAS: dict[str, dict[str, str]] = {
    "ADVANTAGES": {
        "reward": r"A_i = R_i",
        "grpo": r"A_i = (R_i - \bar{R}) / (\mathrm{std}(R) + 10^{-6})",
        "grpo_no_std": r"A_i = R_i - \bar{R}",
        "rloo": r"A_i = R_i - \frac{1}{G-1} \sum_{j \ne i} R_j",
        "gae": r"A_t = \sum_{l \ge 0} (\gamma \lambda)^l \left(R_{t+l} + \gamma V_{t+l+1} - V_{t+l}\right)",
    },
    "AGGREGATIONS": {
        "token-mean": r"\sum_{i,t} x_{it} / \sum_i T_i",
        "token-sum": r"\sum_{i,t} x_{it}",
        "seq-mean-token-sum": r"\frac{1}{n} \sum_i \sum_t x_{it}",
        "seq-mean-token-sum-norm": r"\frac{1}{n T} \sum_i \sum_t x_{it}",
        "seq-mean-token-mean": r"\frac{1}{n} \sum_i \frac{1}{T_i} \sum_t x_{it}",
    },
    "OBJECTIVES": {
        "reinforce": r"R_i \log \pi_\theta",
        "ppo": CLIPPED,
        "grpo": CLIPPED,
        "dr_grpo": CLIPPED,
        "dapo": CLIPPED + r", \quad \epsilon_l = 0.2, \, \epsilon_h = 0.28",
        "gspo": r"\min(s A, \, \mathrm{clip}(s, 1 - \epsilon_l, 1 + \epsilon_h) A), \quad " + SEQUENCE,
        "cispo": r"\mathrm{sg}(\mathrm{clip}(r, 1 - \epsilon_l, 1 + \epsilon_h)) A \log \pi_\theta",
        "grpo_fix": r"\mathrm{clip}(r, 1 - \epsilon, 1 + \epsilon) A",
        "luspo": r"\min(s A, \, \mathrm{clip}(s, 1 - \epsilon_l, 1 + \epsilon_h) A), \quad " + SEQUENCE,
    },
    "OBJECTIVE_MODIFIERS": {
        "tis": r"w = \min(\rho, C)",
        "mis": r"w = \rho \, [\rho \le C]",
        "seq_tis": r"w = \min\left(\prod_t \rho_t, C\right)",
        "seq_mis": r"w = \prod_t \rho_t \, \left[\prod_t \rho_t \le C\right]",
        "icepop": r"w = \rho \, [a \le \rho \le b]",
        "acrl": r"w = \min(\rho^\alpha, C), \quad \alpha = \gamma \, \mathrm{sign}(A) (1 - Y / X)",
        "geo_mask": r"a \le \left(\prod_t \rho_t\right)^{1/T} \le b",
        "k3_mask": r"\frac{1}{T} \sum_t (\rho_t - 1 - \log \rho_t) \le k",
        "trm": r"\max_t \frac{1}{2} (\log \rho_t)^2 \le k",
    },
    "METRICS": {
        "std_rho": r"\left(\overline{\rho^2} - \bar{\rho}^2\right)^{1/2}",
        "mean_rho": r"\bar{\rho}",
        "rms_log_rho": r"\left(\overline{(\log \rho)^2}\right)^{1/2}",
        "discrepancy": r"\frac{1}{n} \sum_i \frac{1}{T_i} \sum_t " + DIFFERENCE,
        "discrepancy_per_token": r"\overline{" + DIFFERENCE + "}",
        "discrepancy_max": r"\max_{i,t} " + DIFFERENCE,
        "k1_kl": r"-\overline{\log \rho}",
        "k3_kl": r"\overline{\rho - 1 - \log \rho}",
        "chi2_token": r"\overline{\rho^2} - 1",
        "chi2_sequence": r"\frac{1}{n} \sum_i \left(\prod_t \rho_{it}\right)^2 - 1",
        "ess_token": r"\bar{\rho}^2 / \overline{\rho^2}",
        "max_rho_sequence": r"\max_i \prod_t \rho_{it}",
        "abs_seq_log_ratio": r"\frac{1}{n} \sum_i \left|\sum_t \log \rho_{it}\right|",
        "log_ppl_abs_diff": r"\frac{1}{n} \sum_i \left|\frac{1}{T_i} \sum_t \log \rho_{it}\right|",
    },
    "WEIGHT_METRICS": {"effective_sample_size": r"\bar{w}^2 / \overline{w^2}"},
}
"""Formulas of rows, shown beside them."""
