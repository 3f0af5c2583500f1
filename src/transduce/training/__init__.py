"""Section 5 of the paper: loss, optimizer and schedule, the training loop, checkpoints."""
