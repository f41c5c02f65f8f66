"""What a snapshot can hold, by the types of its arrays."""

from grace.configs.errors import InputError

__all__ = ["MAX_ID", "MAX_SID_LENGTH", "MAX_VOCAB_SIZE", "SEVERAL_SNAPSHOTS", "require_ids"]

MAX_ID = (1 << 31) - 1
"""Ids and offsets into them are int32: of nodes, ads, rows, rules and values."""

MAX_SID_LENGTH = 16
MAX_VOCAB_SIZE = 1 << 16  # tokens are uint16

SEVERAL_SNAPSHOTS = "split the catalogue into several snapshots"


def require_ids(count: int, things: str, remedy: str = SEVERAL_SNAPSHOTS) -> None:
    """Raises InputError for more things than ids can name."""
    if count > MAX_ID:
        raise InputError(f"{count} {things}, a snapshot holds at most 2^31 - 1: {remedy}")
