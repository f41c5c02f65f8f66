"""Configuration: frozen sections, the strict YAML loader that fills them, and the exceptions."""
