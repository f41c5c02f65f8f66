"""Options and settings, each declared once, as a field of the dataclass that it fills.

    max_rejects: Annotated[int, Option("Leave out up to this many faulty ads.", least=0)] = 0

Everything else follows from the field: `cli/declared.py` makes an option of it, `sections.py` reads
it from YAML and checks its bounds, and `bench/reference_tables.py` writes its line of
docs/settings.md. A text in place of `Option(...)` is the words alone, also next to a type that is
already annotated.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from grace.configs.errors import InputError

Fp8Product: TypeAlias = Literal["qkv", "self_out", "cross_q", "cross_out", "feed_forward"]


@dataclass(frozen=True, slots=True)
class Option:
    words: str = ""  # its meaning, for --help and the table of settings
    value: str | None = None  # the name of its value; without it, the type's, such as TEXT
    least: float | None = None  # of the number, or of each number of a list or a mapping
    most: float | None = None
    commas: str | None = None  # an example of its numbers, which are one text with commas
    name: str | None = None  # the option's name, if it differs from the field's
    above: float | None = None  # an exclusive bound, which only sections check
    is_new: bool = False  # a folder to write, which commands refuse before they import torch


class Argument(Option):
    """An option whose value a command takes without a name."""


def declaration(hint: Any) -> tuple[Any, Option]:
    """Return the type of a field or parameter, and what its annotation declares."""
    if get_origin(hint) is not Annotated:
        return hint, Option()
    type_, *declared = get_args(hint)
    option = next((each for each in declared if isinstance(each, Option)), Option())
    words = next((each for each in declared if isinstance(each, str)), option.words)
    return type_, replace(option, words=words)


Without: TypeAlias = Annotated[
    tuple[str, ...],
    Option("Leave out this attribute, set or entity, which no ad has; repeatable.", "NAME"),
]


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
    without: Without = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(Stated):
    """The choices of a build's operator."""

    updates_watermark: Annotated[int, "Number of the last update of ads that the table has."] = 0
    max_rejects: Annotated[int, Option("Leave out up to this many faulty ads.", least=0)] = 0
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


Sids: TypeAlias = Annotated[
    str | None,
    Option("Table of item_id and sid; other ads get their SIDs as tables.yaml says.", "TABLE"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOptions:
    """How the rows of tables become ads that a server takes."""

    data: Annotated[
        Path | None, Option("Data folder, which says what columns and ids mean.", "FOLDER")
    ] = None
    sids: Sids = None
    without: Without = ()
    batch: Annotated[int, Option("Most ads in one update.", least=1, most=100_000)] = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(Stated):
    """What training and evaluation read, and the device that computes them."""

    data: Annotated[Path, "Data folder: tables.yaml, or ads.parquet and interactions.parquet."]
    device: Annotated[str | None, "cpu, or cuda:0. Default: the GPU, if there is one."] = None
    max_unknown: Annotated[
        float,
        Option(
            "Largest share of events of unknown ads; above it, the command ends.", least=0, most=1
        ),
    ] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun(LogOptions):
    """A training. `steps` overrides the recipe's length."""

    out: Annotated[Path, "Folder of the checkpoint, new or empty."]
    config: Annotated[Path | None, "YAML that changes the recipe: model, training, generation."] = (
        None
    )
    start: Annotated[
        Path | None, Option("Checkpoint to start from, with its model.", "FOLDER", name="--from")
    ] = None
    steps: Annotated[int | None, Option("Steps instead of the recipe's.", least=1)] = None
    seed: Annotated[int, Option("Equal seeds give equal weights on one machine.", least=0)] = 1
    seeds: Annotated[
        int, Option("Train with N seeds from --seed on, and print how recall varies.", least=1)
    ] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSpec(LogOptions):
    checkpoint: Annotated[Path, "Folder of the checkpoint."]
    cutoffs: Annotated[
        tuple[int, ...],
        Option("Cut-offs k of recall@k and NDCG@k.", "K,K", commas="1,10,50", least=1),
    ] = (1, 5, 10, 50)
    users: Annotated[int, Option("Held-out users to measure, at most.", least=1)] = 2000
    beams: Annotated[int, Option("Beams of the search in every step.", least=1, most=65536)] = 128


@dataclass(frozen=True, slots=True)
class ImportSpec:
    source: Annotated[Path, Argument("FILE.index.json.", "SIDS")]
    out: Annotated[Path, "The table of SIDs to write, Parquet."]
    sid_space: Annotated[str, "Name of the SID space, which must be the model's."]
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


@dataclass(frozen=True, slots=True)
class CodebookSpec:
    out: Annotated[Path | None, "Folder of the codebook."] = None
    levels: Annotated[int, Option("Tokens of a SID.", least=1, most=16)] = 4
    codes: Annotated[
        tuple[int, ...],
        Option("Codes of every level, or of each: 512,256,256.", commas="512 or 512,256,256"),
    ] = (512,)
    balance: Annotated[
        float, "Cap on the items of the fullest code; 1 is an even share, 0 is no cap."
    ] = 2.0
    seed: Annotated[int, Option("Equal seeds give equal SIDs.", least=0)] = 1
    sid_space: Annotated[str | None, "Name of the SID space. Default: made from the codebook."] = (
        None
    )
    force: Annotated[bool, "Replace existing files."] = False

    def __post_init__(self) -> None:
        if len(self.codes) not in (1, self.levels):
            raise InputError(
                f"--codes {','.join(map(str, self.codes))}: {len(self.codes)} sizes for "
                f"{self.levels} levels; give one size, or one for each level"
            )
        if not (self.balance == 0 or self.balance >= 1):
            raise InputError(f"--balance {self.balance:g}: give 1 or more, or 0 for no cap")

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.codes * self.levels if len(self.codes) == 1 else self.codes


Normalizer: TypeAlias = Literal["all", "level"]


@dataclass(frozen=True, slots=True)
class SidLayout:
    """Facts that a Hugging Face folder lacks: which tokens of its vocabulary are SIDs."""

    sid_space: Annotated[str, "Name of the SID space, which must be the snapshot's."]
    sid_tokens: Annotated[
        tuple[str, ...],
        Option("Text of a position's tokens, with {} for the code. Once per position.", "TEXT"),
    ] = ()
    offsets: Annotated[
        tuple[int, ...] | None,
        Option("Instead: the token of code 0 at each position.", commas="151669,159861,168053"),
    ] = None
    vocab_sizes: Annotated[
        tuple[int, ...] | None,
        Option(
            "Number of codes per position. Default: those with tokens, without gaps.",
            commas="8192,8192,8192",
            least=1,
        ),
    ] = None
    normalizer: Annotated[
        Normalizer, "Tokens over which a step's softmax runs: all, or those of its level."
    ] = "all"

    def __post_init__(self) -> None:
        if self.sid_tokens and self.offsets:
            raise InputError("--sid-tokens: give either patterns or --offsets")
        for pattern in self.sid_tokens:
            if pattern.count("{}") != 1:
                raise InputError(f"--sid-tokens {pattern}: must have {{}} once, for the code")
        if not self.sid_tokens and self.vocab_sizes is None:
            raise InputError("--vocab-sizes: missing; give a size per position, or --sid-tokens")
        positions = len(self.sid_tokens or self.offsets or self.vocab_sizes or ())
        if self.vocab_sizes is not None and len(self.vocab_sizes) != positions:
            fault = f"{len(self.vocab_sizes)} sizes for {positions} positions; give one for each"
            raise InputError(f"--vocab-sizes: {fault}")


@dataclass(frozen=True, slots=True)
class T5Layout(SidLayout):
    """Facts that a T5 folder lacks: the tokens of SIDs, and where the history comes from."""

    prefix_tokens: Annotated[
        tuple[int, ...], Option("Tokens before the history, as 1025,7.", commas="1025,7")
    ] = ()
    eos_token: Annotated[int | None, "Token after the history. Default: none."] = None
    history: Annotated[str, "Name of the input with the history."] = "clicks"
    max_history: Annotated[int, Option("Most events of it that the model reads.", least=1)] = 20


@dataclass(frozen=True, slots=True)
class CausalLayout(SidLayout):
    """Facts that a causal model's folder lacks: the tokens of SIDs, and what a prompt is."""

    prompt: Annotated[
        Path | None, "YAML of the section prompt. Default: bos_token_id, then the history."
    ] = None
    history: Annotated[str | None, "Input with the history. Default: the prompt's, or clicks."] = (
        None
    )
    max_history: Annotated[int, Option("Most events of it that the model reads.", least=1)] = 100

    def __post_init__(self) -> None:
        if not self.sid_tokens and not self.offsets:
            raise InputError("--sid-tokens: missing; give either patterns or --offsets")
        SidLayout.__post_init__(self)
