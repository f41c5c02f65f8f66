"""Measurements of `grace sids`: the hierarchy that it finds, its speed, and a model's recall."""
