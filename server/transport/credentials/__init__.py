"""Certificates: read, checked, and read again when their files change."""
