"""A snapshot and a checkpoint on a device, ready to run."""
