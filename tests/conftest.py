"""Fixtures and settings of every test. Helpers with a name of their own live in tests/support."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# Sums this small only wait for a second thread, which spins. Torch and NumPy read this when
# they are imported, also in processes that tests start. Tests of several threads set their own,
# which sleep while they wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell's background job ignores SIGINT, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of processes import the project. Without bytecode on the disk each compiles it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The same examples on every machine and every run; `explore` looks for new ones. Hypothesis shrinks
# a failure but does not explain it, which takes minutes for a long example.
settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("same"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent
