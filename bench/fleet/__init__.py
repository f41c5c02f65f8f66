"""Several servers with one Envoy in front, the certificates of both, and their benchmark."""
