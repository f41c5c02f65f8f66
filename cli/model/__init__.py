"""Commands that make, train and measure checkpoints."""
