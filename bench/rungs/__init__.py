"""The paper's rungs L0 to L3 and other systems, with which the engine is compared.

They compute the function of `grace.model.definition.beam_search`, and the product does not use
them. `dense_search` is the decoder of L0 to L3, with `attention` and `coalesced_triton`; `hf_t5`
and `peer_steps` are the other systems.
"""
