"""Parts of the experiment `which_card`: engines that differ in one thing, policies, exact shares."""
