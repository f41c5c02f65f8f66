"""A copy of the repository as a clone has it."""

import shutil
import subprocess
from pathlib import Path


def copy_clone(repository: Path, target: Path) -> Path:
    """Copy the files that git tracks or would track: no build output, no environment."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (repository / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, target / name, follow_symlinks=False)
    return target
