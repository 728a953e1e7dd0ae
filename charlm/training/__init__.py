"""Training: start → loop → step, with the state, optimizer and metrics of a run."""
