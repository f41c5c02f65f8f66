"""The command that installs what an extra of pyproject.toml lists."""

import shlex
import sys


def install_command(*extras: str) -> str:
    """Return the command for this Python. pip keeps an installed project, wherever it is from."""
    wanted = shlex.quote(f"grace-serving[{','.join(extras)}]")
    return f"{shlex.quote(sys.executable)} -m pip install {wanted}"
