"""gRPC: listeners, calls, the Admin service, and processes that hold the connections."""
