"""First policies over long responses: taught by seed, kept as files if they have learned the task.

Another processor adds in another order, and 4,000 updates make another policy of it, so a seed that learns
here need not learn there. Files travel: the runs of `campaign` begin from those in `experiments/warm_starts`,
copies of `policies/` in the folder of a run of this experiment, or of `first_experts`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from experiments import campaign
from experiments.campaign import ARMS, long
from experiments.dynamics_study.runs import SMOKE, Place
from experiments.dynamics_study.studies import begin, looking, taught
from simlab.core.experiment import Experiment, Run
from simlab.models.parameters import Params
from simlab.training.checkpoints import save_tree

FIRST_SEED, POLICIES, LEAST_REWARD = 4, 8, 0.2
MOST_SEEDS = 256
ROLLOUTS = 4
TEACHING: dict[str, Any] = {
    "steps": 4000,
    "batch": 16,
    "mistakes": 0.02,
    "optimizer": {"learning_rate": 8e-3},
}
"""Half of the seeds learn nothing at this rate, nine of ten with experts. At a quarter of it most learn, but
their runs collapse without any mismatch (`LOG.md`)."""
LOOK = looking(("reward", "mismatch"))
RULE = (
    f"Of the seeds from {FIRST_SEED} on, the first {POLICIES} count whose first {ROLLOUTS} rollouts under "
    f"BF16 earn {LEAST_REWARD} or more, before any run is looked at."
)


@dataclass(frozen=True)
class Screening:
    """Policies of one model, whose arms are `named` and whose files are `kept` with a seed."""

    named: Callable[[str], str]
    kept: str

    def run(self, run: Run) -> None:
        """Teach seed by seed until enough policies count; in the smoke mode until one does."""
        run.configure(teaching=TEACHING)
        rows: list[dict[str, Any]] = []
        for seed in range(FIRST_SEED, FIRST_SEED + MOST_SEEDS):
            rows.append(self._taught(run, seed))
            run.say(f"seed {seed}: reward {rows[-1]['reward_bf16']:.3f} under BF16")
            if sum(row["counts"] for row in rows) == (1 if run.smoke else POLICIES):
                break
        else:
            raise ValueError(f"{MOST_SEEDS} seeds taught, and fewer than {POLICIES} of them learned: {rows}")
        run.seeds(row["seed"] for row in rows)
        run.table("starts", rows)

    def _taught(self, run: Run, seed: int) -> dict[str, Any]:
        """Teach one policy, look at its first rollouts and keep it if it counts; return its row."""
        dosed, params = self._seen(run, campaign.NONE, seed)
        under_bf16 = self._seen(run, campaign.BF16, seed)[0]["reward"]
        counts = run.smoke or under_bf16 >= LEAST_REWARD
        if counts:
            save_tree(run.out / "policies" / f"{self.kept}-{seed}.npz", params)
        return {"seed": seed, "reward_bf16": under_bf16, **dosed, "counts": counts}

    def _seen(self, run: Run, arm: str, seed: int) -> tuple[dict[str, float], Params]:
        """Return means over first rollouts of an arm, and the policy."""
        changes = {**ARMS[self.named(arm)].changes, **(SMOKE if run.smoke else {})}
        changes["warm_start"] = {"seed": seed, **TEACHING, **({"steps": 2} if run.smoke else {})}
        wanted = [Place(arm, self.kept, key, {**changes, "seed": key}) for key in range(ROLLOUTS)]
        recipe, _, states = begin(wanted, taught(run))
        looks = LOOK(recipe, states, states.params)
        policy = jax.tree.map(lambda leaf: leaf[0], states.params)
        return {name: float(found.mean()) for name, found in looks.items()}, policy


EXPERIMENT = Experiment(
    name="first_policies",
    question="Which first policies over long responses have learned their task?",
    decision_rule=RULE,
    run=Screening(long, "chain").run,
    minutes=20.0,
)
