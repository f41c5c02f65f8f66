"""Options of commands, each declared once, as a field of the dataclass that it fills.

    max_rejects: Annotated[int, Option("Leave out up to this many faulty ads.", least=0)] = 0

The command line follows from the field: name, type, default, and the words of `--help`. A text in
place of `Option(...)` is the words alone. `cli/declared.py` reads the declarations.
"""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated

from grace.configs.errors import InputError


@dataclass(frozen=True, slots=True)
class Option:
    """
    words   its meaning, for --help
    value   the name of its value; without it, the type's, such as TEXT
    commas  an example of its numbers, which are one text with commas
    name    the option's name, if it differs from the field's
    """

    words: str
    value: str | None = None
    least: float | None = None
    most: float | None = None
    commas: str | None = None
    name: str | None = None


class Argument(Option):
    """An option whose value a command takes without a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Facts that the ads table does not state, and the caller does."""

    sid_space: Annotated[
        str | None, "Name of the SID space. Default: the Parquet metadata of the ads."
    ] = None
    vocab_sizes: Annotated[
        tuple[int, ...] | None,
        Option(
            "Tokens per position, as 512,512,512,512. Default: the Parquet metadata.",
            commas="512,512,512,512",
        ),
    ] = None
    without: Annotated[
        tuple[str, ...],
        Option("Leave out this attribute, set or entity, which no ad has; repeatable.", "NAME"),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(Stated):
    """The choices of a build's operator."""

    version: Annotated[int | None, "Number of the new version. Default: one above the latest."] = (
        None
    )
    updates_watermark: Annotated[int, "Number of the last update of ads that the table has."] = 0
    max_rejects: Annotated[int, Option("Leave out up to this many faulty ads.", least=0)] = 0
    reject_file: Annotated[
        Path | None, "List refused ads here. Default: ROOT/VERSION.rejects.jsonl."
    ] = None
    publish: Annotated[bool, "Make the new version current."] = True
    max_coverage_drop: Annotated[
        float,
        Option(
            "Do not publish if the share of ads with a rule on an attribute or set falls by more "
            "than this part of what it was in the current version, or if a column loses all its "
            "rules; 1 allows both.",
            least=0,
            most=1,
        ),
    ] = 0.2


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """An import of published Semantic IDs."""

    source: Annotated[Path, Argument("FILE.index.json, FILE.jsonl or FILE.npy.", "SIDS")]
    out: Annotated[Path, "The table of SIDs to write, Parquet."]
    sid_space: Annotated[str, "Name of the SID space, which must be the model's."]
    ids: Annotated[
        Path | None, "Item ids for a .npy: another .npy, or lines of text. Default: row numbers."
    ] = None
    vocab_sizes: Annotated[
        tuple[int, ...] | None,
        Option(
            "Tokens per position, as 256,256,256. Default: as the tokens need.",
            commas="256,256,256",
        ),
    ] = None
    sid_length: Annotated[
        int | None,
        Option("Cut longer SIDs, such as one whose last token only separates items.", least=1),
    ] = None
    max_rejects: Annotated[int, Option("Leave out up to this many faulty items.", least=0)] = 0
    force: Annotated[bool, "Replace OUT."] = False

    @property
    def reject_file(self) -> Path:
        return self.out.with_suffix(".rejects.jsonl")


@dataclass(frozen=True, slots=True)
class T5Layout:
    """Facts that a T5 folder lacks: which tokens are SIDs, and where the history comes from."""

    sid_space: Annotated[str, "Name of the SID space, which must be the snapshot's."]
    vocab_sizes: Annotated[
        tuple[int, ...],
        Option("Tokens per position, as 256,256,256,256.", commas="256,256,256,256"),
    ]
    token_offsets: Annotated[
        tuple[int, ...] | None,
        Option("Token of value 0 at each position, if not consecutive.", commas="1,257,513"),
    ] = None
    first_token: Annotated[
        int | None, "Token of value 0 at position 0; the other positions follow. Default: 1."
    ] = None
    prefix_tokens: Annotated[
        tuple[int, ...], Option("Tokens before the history, as 1025,7.", commas="1025,7")
    ] = ()
    eos_token: Annotated[int | None, "Token after the history. Default: none."] = None
    history: Annotated[str, "Name of the input with the history."] = "clicks"
    max_history: Annotated[int, Option("Most events of it that the model reads.", least=1)] = 20

    def __post_init__(self) -> None:
        if self.token_offsets is not None and self.first_token is not None:
            raise InputError(
                f"--first-token {self.first_token}: --token-offsets says it already; leave one of "
                "them out"
            )

    @property
    def offsets(self) -> tuple[int, ...]:
        """The token of value 0 at each position; by default, positions follow one another."""
        first = 1 if self.first_token is None else self.first_token
        return self.token_offsets or tuple(accumulate(self.vocab_sizes[:-1], initial=first))
