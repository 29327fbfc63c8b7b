"""Settings of a run of Qwen3-30B-A3B that simlab does not have: 4 nodes of 8 GPUs, 8192 tokens a response.

Keys of verl 0.9.1; a `+` is a key new to its config.
Reference: hacking Sec. 4.1; verl examples/grpo_trainer/run_qwen3_30b_a3b_megatron.sh.
"""

from simlab.core.json_value import Json

COMMON: dict[str, Json] = {
    "data.max_prompt_length": 2048,
    "data.max_response_length": 8192,
    "data.truncation": "left",
    "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 20480,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 4,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.6,
    "actor_rollout_ref.rollout.max_model_len": 10240,
    "actor_rollout_ref.rollout.max_num_batched_tokens": 10240,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 40960,
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 40960,
    "reward.reward_manager.name": "dapo",
    "trainer.logger": ["console", "wandb"],
    "trainer.project_name": "simlab",
    "trainer.nnodes": 4,
    "trainer.n_gpus_per_node": 8,
    "trainer.save_freq": 50,
    "trainer.test_freq": 10,
    "trainer.val_before_train": False,
}

MEGATRON: dict[str, Json] = {
    "model_engine": "megatron",
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 4,
    "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size": 1,
    "actor_rollout_ref.actor.megatron.expert_model_parallel_size": 8,
    "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size": 1,
    "actor_rollout_ref.actor.megatron.param_offload": True,
    "actor_rollout_ref.actor.megatron.optimizer_offload": True,
    "actor_rollout_ref.actor.megatron.use_mbridge": True,
    "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity": "full",
    "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method": "uniform",
    "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers": 1,
}

FSDP: dict[str, Json] = {
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 4,
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
}
