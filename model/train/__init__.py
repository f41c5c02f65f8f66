"""Training of small models: next-item prediction on an interaction log, and how well it went.

    train_model(data, out, recipe, seed, progress)     model.train.run, what `grace train` does

`data` is a folder as `grace synth` writes it; docs/training.md says what it holds.
"""
