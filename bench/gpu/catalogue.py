"""The paper's catalogue in any size: its snapshots by matcher mode, and its users.

Its arrays are made when a snapshot needs them. Commands that share a folder (`--cache`) build the
snapshot in mode `union` once: 30 million SIDs are a minute of a machine that is lent by the minute.
"""

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from grace.bench.gpu.options import BenchOptions
from grace.catalogues.paper import (
    PAPER_SIDS,
    PaperCatalogue,
    PaperKnobs,
    PaperSpec,
    arranged_ads,
    make_paper_catalogue,
    make_users,
    snapshot_of,
)
from grace.catalogues.paper.draws import Draws
from grace.catalogues.paper.snapshots import decode_snapshot
from grace.configs.machine import available_cores
from grace.index.builder.arrange import Arranged
from grace.index.matchers.matchers import KWay, MatcherMode, StaticKWay
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot, publish, write_snapshot
from grace.index.users.user_rows import UserAttributes, UserEncoder, UserRows
from grace.kernels import UserTensors

__all__ = ["SEED", "Catalogue", "catalogue_spec"]

SEED = 1

_SECOND_LEVEL = 512 * 384
_STATIC = StaticKWay((64, 64, 32, 8))  # the paper's


class Catalogue:
    def __init__(self, sids: int, cache: Path | None = None) -> None:
        """`cache`: a folder of snapshots that this code made; a missing one is added."""
        self.spec = catalogue_spec(sids)
        self._cache = cache

    @staticmethod
    def of(options: BenchOptions, default_sids: int) -> "Catalogue":
        return Catalogue(options.sids[0] if options.sids else default_sids, options.kept)

    def snapshot(self, mode: MatcherMode) -> Snapshot:
        if self._cache is None or mode is not MatcherMode.UNION:
            return self._built(mode)
        return load_snapshot(self.written(mode, self._cache))

    def snapshot_to_decode(self) -> Snapshot:
        """In mode `union`, perhaps without ads: half of the work of the largest catalogues."""
        if self._cache is not None and self._root(MatcherMode.UNION, self._cache).exists():
            return self.snapshot(MatcherMode.UNION)
        threads = available_cores()
        return decode_snapshot(make_paper_catalogue(self.spec, threads), threads)

    def written(self, mode: MatcherMode, folder: Path) -> Path:
        """The root of its snapshot below the cache, or else below `folder`."""
        root = self._root(mode, self._cache or folder)
        if not (root / "CURRENT").exists():
            root.mkdir(parents=True, exist_ok=True)
            snapshot = self._built(mode)
            write_snapshot(snapshot, root)
            publish(root, snapshot.facts.version)
        return root

    def attributes(self, first: int, count: int) -> list[UserAttributes]:
        """Users `first`, `first` + 1, ... of the population, with 64 random locations each."""
        return list(make_users(first + count, Draws(self.spec.seed), self.spec.knobs)[first:])

    def rows(self, snapshot: Snapshot, first: int, count: int) -> UserRows:
        encoder = UserEncoder(snapshot.schema, snapshot.set_values)
        return encoder.encode(self.attributes(first, count))

    def users(
        self, snapshot: Snapshot, device: torch.device, batches: int, batch: int
    ) -> list[UserTensors]:
        return [
            UserTensors.of(self.rows(snapshot, begin, batch), device)
            for begin in range(0, batches * batch, batch)
        ]

    def _root(self, mode: MatcherMode, folder: Path) -> Path:
        return folder / f"{self.spec.sid_space}-{mode}"

    def _built(self, mode: MatcherMode) -> Snapshot:
        paper, arranged = self._made
        k_way: KWay | None = _STATIC if mode is MatcherMode.STATIC else None
        return snapshot_of(paper, arranged, mode, available_cores(), k_way)

    @cached_property
    def _made(self) -> tuple[PaperCatalogue, Arranged]:
        threads = available_cores()
        paper = make_paper_catalogue(self.spec, threads)
        return paper, arranged_ads(paper, threads)


def catalogue_spec(sids: int) -> PaperSpec:
    """Another size than the paper's keeps its two-token prefixes and changes what is below them.

    Fan-outs of positions 2 and 3 grow alike, so that catalogues differ in what a trie of that size
    must differ in, and in nothing that fewer first tokens would change. Very small ones, for tests,
    have the generator's own shape.
    """
    if sids == PAPER_SIDS or sids < 2 * _SECOND_LEVEL:
        return PaperSpec(sids, SEED)
    knobs = PaperKnobs()
    grown = float((sids / PAPER_SIDS) ** 0.5)
    last = max(1.5, knobs.fan_out_4 * grown)
    return PaperSpec(
        sids, SEED, replace(knobs, fan_out_3=sids / (_SECOND_LEVEL * last), fan_out_4=last)
    )
