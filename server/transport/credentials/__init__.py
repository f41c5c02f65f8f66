"""Certificates and tokens: read, checked, and read again when their files change."""
