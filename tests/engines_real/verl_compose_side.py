"""Runs inside verl's environment: compose each list of overrides under verl's own Hydra config.

`python verl_compose_side.py RUNS.json OUT`: for each run, the value at every key, and the whole as YAML.
"""

# pyright: reportMissingImports=false
import json
import sys
from pathlib import Path

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass, validate_config

FOLDER = Path(verl.__file__).parent / "trainer" / "config"
# Parts that verl itself turns into records: unknown keys and wrong types fail there.
RECORDS = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm")


def main():
    """Compose, build verl's records, and write what was found."""
    runs, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    with initialize_config_dir(config_dir=str(FOLDER), version_base=None):
        for name, overrides in runs.items():
            config = compose(config_name="ppo_trainer", overrides=overrides)
            for part in RECORDS:
                omega_conf_to_dataclass(OmegaConf.select(config, part))
            # What main_ppo checks before anything starts, and the worker when it does.
            actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
            validate_config(config, use_reference_policy=actor.use_kl_loss, use_critic=False)
            assert actor.use_dynamic_bsz == rollout.log_prob_use_dynamic_bsz
            keys = [override.split("=", 1)[0].lstrip("+") for override in overrides]
            values = {key: OmegaConf.select(config, key) for key in keys if key != "model_engine"}
            values = {
                key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
                for key, value in values.items()
            }
            (out / f"{name}.json").write_text(json.dumps(values))
            OmegaConf.save(config, out / f"{name}.yaml", resolve=False)


if __name__ == "__main__":
    main()
