"""Where gRPC runs, for tests of promises that must not depend on it."""

import pytest

front_ends = pytest.mark.parametrize(
    "front_ends", [0, 2], ids=("gRPC in the server", "in two relays")
)
"""A mark that runs a test with each value of `listen.front_ends`."""
