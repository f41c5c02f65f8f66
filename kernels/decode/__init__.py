"""The operations of the decode loop, each with its torch reference and its fast bodies."""
