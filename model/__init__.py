"""The model: what it is, how a GPU runs it, how it is stored, and how it is trained.

definition    features, encoders, decoder and beam search in plain torch: what is correct
engine        the same functions, organised for a GPU and recorded as CUDA graphs
checkpoints   model.yaml and model.safetensors: read, write, import, initialise
train         small models from a log of interactions
"""
