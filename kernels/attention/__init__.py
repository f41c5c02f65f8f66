"""The attention of decoders: beams to users, prompts and prefixes, and prompts to themselves."""
