"""Targeting: the schema of attributes and sets, and the rules of ads."""
