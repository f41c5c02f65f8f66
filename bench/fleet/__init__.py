"""Several servers behind one Envoy, with the certificates of both, and how they are measured."""
