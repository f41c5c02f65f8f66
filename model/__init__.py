"""The model: features, encoders, the T5-family decoder, beam search, checkpoints, training.

`grace.model.definition.beam_search` defines generation, top to bottom in one read. A checkpoint
is a folder with
`model.yaml` (`grace.model.definition.spec`) and `model.safetensors`
(`grace.model.checkpoints.checkpoint`).
"""
