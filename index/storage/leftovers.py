"""What a killed writer leaves behind: named here, and removed by the next one."""

import os
import shutil
import stat

from grace.index.storage.folder import names_in

__all__ = ["NEW_CURRENT", "PARTIAL", "remove_leftovers", "remove_tree"]

NEW_CURRENT = ".CURRENT.new"
PARTIAL = ".writing-"
"""Begins the name of a version's folder until it is complete."""


def remove_leftovers(folder: int) -> None:
    """Only under the writers' lock: whoever made them is gone then."""
    for name in names_in(folder):
        if name == NEW_CURRENT or name.startswith(PARTIAL):
            remove_tree(name, folder)


def remove_tree(name: str, folder: int) -> None:
    """Removes a file, a link or a folder with all that is in it; follows no link."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)
