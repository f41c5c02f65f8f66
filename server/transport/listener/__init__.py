"""One gRPC server on one address: its limits, health, reflection, and the end of slow calls."""
