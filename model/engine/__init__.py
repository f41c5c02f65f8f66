"""The fast engine: the same function as `grace.model.definition`, arranged for a GPU."""
