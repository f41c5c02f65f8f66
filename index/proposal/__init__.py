"""Propose the roles of a table's columns, as two YAML files (`grace init`)."""
