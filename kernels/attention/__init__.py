"""The attention of decoders: of beams to their users, prompts and prefixes."""
