"""The tables of `grace bench`, and which of its options mean something to each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["TABLES", "Several", "Table"]

Several: TypeAlias = Literal["none", "one", "many"]
"""How often an option may be given."""


@dataclass(frozen=True, slots=True)
class Table:
    """
    parts       that --only names; none: the table is measured whole
    spared      those of them that are left out unless they are named
    sids        sizes of the catalogue
    precisions  of the engine
    rates       whether a server is loaded
    """

    parts: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    sids: Several = "one"
    precisions: Several = "many"
    rates: bool = False


TABLES: Mapping[str, Table] = {
    "attention": Table(("copy", "cross", "self", "counters"), ("counters",), sids="none"),
    "gtm": Table(
        (
            "admission:cd", "admission:bitmask", "admission:union", "admission:static",
            "admission:dynamic", "selection:free", "selection:union", "decoder",
        ),
        sids="many",
        precisions="one",
    ),
    "ladder": Table(("L0", "L1", "L2", "L3", "L4", "D0", "D1", "D2", "D3")),
    "serve": Table(("idle", "load", "saturation"), rates=True),
    "budget": Table(),
    "others": Table(("hf", "prefix", "ours", "static"), precisions="one"),
    "overlap": Table(("paper", "trained")),
}  # fmt: skip
