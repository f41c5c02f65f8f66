"""How this process proves itself to a Ray cluster. To be asked before Ray is imported.

`ray start` asks for a token where it finds one on its machine, while a process that joins sends
its own only if told to. A cluster without tokens does not mind one.
"""

import os
from pathlib import Path

__all__ = ["send_token_if_there"]

MODE = "RAY_AUTH_MODE"


def send_token_if_there() -> None:
    """Ray reads its environment once, when it is imported; what the user set there stays."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault(MODE, "token")
