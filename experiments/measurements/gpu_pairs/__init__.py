"""Parts of the experiment `gpu_pairs`: engines that differ in one thing, policies, exact shares."""
