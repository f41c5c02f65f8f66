"""What the engine is measured against: the rungs below it on the paper's ladder, and others' ways.

They compute the function of `grace.model.definition.beam_search`, and live here because the
product does not use
them: `dense_search` is one decoder body for the rungs L0 to L3, which differ in their attention
only; `EveryToken` stands in for a catalogue without constraints; `hf_t5` and `static_mask` are what
others do.
"""
