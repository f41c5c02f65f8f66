"""The model: features, encoders, the T5-family decoder, beam search, checkpoints, training.

`model.beam_search` defines generation, top to bottom in one read. A checkpoint is a folder with
`model.yaml` (`model.spec`) and `model.safetensors` (`model.checkpoint`).
"""
