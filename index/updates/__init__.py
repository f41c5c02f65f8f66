"""What updates change while a snapshot is served: stops, weights and ads. State and log."""
