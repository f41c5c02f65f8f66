"""The fast engine of decoder-only models, whose prompts are packed without padding."""
