"""Parts of the experiment `gpu_pairs`: engines that differ in one factor, policies, Shapley shares."""
