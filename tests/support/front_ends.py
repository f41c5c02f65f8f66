"""Where gRPC runs, for tests of promises that must not depend on it."""

import pytest

FRONT_ENDS = (0, 2)
"""Values of `listen.front_ends`."""

WHERE = ("gRPC in the server", "in two relays")
"""The same in the names of tests."""

front_ends = pytest.mark.parametrize("front_ends", FRONT_ENDS, ids=WHERE)
"""Gives a test `front_ends`."""
