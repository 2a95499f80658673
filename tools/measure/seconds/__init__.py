"""Every measured row of cards, predicted by `spmd.step_time` and set beside it."""
