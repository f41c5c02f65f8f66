"""Synthetic catalogues, users and interaction logs: demo, tiny, small and paper."""
