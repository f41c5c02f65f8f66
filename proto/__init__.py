"""The API: retrieval.proto, and the Python classes that are generated from it.

`make proto` generates them again; nothing here is written by hand but the .proto file.
"""
