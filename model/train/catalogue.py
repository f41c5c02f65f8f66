"""The catalogue of a data folder, built as `grace build` does, for training and evaluation."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from grace.index.builder import BuildSpec, build
from grace.index.matchers.modes import MatcherMode
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import DataFolder

_ANY = 1 << 62  # refused ads; a log's events of them count as unknown


@dataclass(frozen=True, slots=True)
class SidNames:
    """What the ads table's metadata leave out: None means that they say it."""

    sid_space: str | None = None
    vocab_sizes: tuple[int, ...] | None = None


FROM_TABLE = SidNames()


def catalogue_of(
    folder: DataFolder, names: SidNames = FROM_TABLE, mode: MatcherMode = MatcherMode.CD
) -> Snapshot:
    """Build a snapshot without the ads that a build refuses. Training needs no matchers."""
    with tempfile.TemporaryDirectory(prefix="grace-train-") as root:
        spec = BuildSpec(
            ads=tuple(Path(file) for file in folder.ads.files),
            targeting=folder.targeting,
            root=Path(root),
            mode=mode,
            sid_space=names.sid_space,
            vocab_sizes=names.vocab_sizes,
            max_rejects=_ANY,
        )
        build(spec, lambda *_: None)
        return load_snapshot(spec.root)
