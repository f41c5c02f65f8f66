"""Let this process prove itself to a Ray cluster. Call it before Ray is imported.

`ray start` asks for a token if it finds one on its machine, but a process that joins sends its own
only if RAY_AUTH_MODE says so. A cluster without tokens ignores one.
"""

import os
from pathlib import Path

MODE = "RAY_AUTH_MODE"


def send_token_if_there() -> None:
    """Set RAY_AUTH_MODE unless the user did. Ray reads its environment once, at import."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault(MODE, "token")
