"""The online service: requests in over gRPC, four stages, the ads of each out."""
