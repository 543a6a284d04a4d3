"""Training: configuration, loss, three ways to update, the loop, checkpoints, tracking, validation."""
