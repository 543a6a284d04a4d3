"""Training: configuration, loss, four ways to update, the loop, checkpoints, tracking, validation."""
