"""The catalogue of a data folder, built as `grace build` does, for training and evaluation."""

import tempfile
from dataclasses import fields
from pathlib import Path

from grace.configs.eligibility import CD, Eligibility
from grace.configs.options import Stated
from grace.index.builder import BuildSpec, build
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import DataFolder

_ANY = 1 << 62  # refused ads; a log's events of them count as unknown


def catalogue_of(
    folder: DataFolder, stated: Stated | None = None, eligibility: Eligibility = CD
) -> Snapshot:
    """Build a snapshot, without ads that a build refuses. Training tests no node."""
    folder.require_codebook()
    with tempfile.TemporaryDirectory(prefix="grace-train-") as root:
        facts = {each.name: getattr(stated, each.name) for each in fields(Stated)} if stated else {}
        spec = BuildSpec(folder, Path(root), max_rejects=_ANY, **facts)
        build(spec, lambda *_: None)
        return load_snapshot(spec.root, eligibility=eligibility)
