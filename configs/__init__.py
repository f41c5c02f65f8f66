"""Configuration: frozen sections, the strict YAML loader that fills them, and the exception tree.

`read_yaml` turns a file into plain values, `load_section` turns those into a frozen dataclass; both
refuse what they do not know. Code receives its own section only, never the whole.
"""
