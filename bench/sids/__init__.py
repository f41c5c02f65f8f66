"""Measurements of `grace sids`: the hierarchy it finds, speed, and what a model learns from it."""
