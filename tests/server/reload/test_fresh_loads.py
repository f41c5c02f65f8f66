"""Pairs with changed ads: what each load ends with, what it refuses, and what it forgets."""

import json
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grace.configs.serving import UpdatesConfig, load_serving_config
from grace.index.storage import write_snapshot
from grace.index.targeting.schema import Attribute
from grace.server.ad_updates import AdUpdates
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError
from grace.server.reload.loading import Loader, LoadFault
from grace.server.stages.stages import STAGES
from support.fresh_ads import json_row, table_rows
from support.live_snapshots import LiveRoot
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.server_process import wait_until
from support.stage_cases import retrieval_of
from support.update_calls import update

CPU = torch.device("cpu")
NEW = range(10**12, 10**12 + 9)


class Scene:
    """A loader and its updates, in this process."""

    def __init__(self, live: LiveRoot, folder: Path) -> None:
        self.live = live
        self.config = replace(load_serving_config(live.write_config("loads.yaml")), watch_seconds=0)
        self.served: ServingPair | None = None
        counts = (lambda *_: None,) * 3
        self.updates = AdUpdates(folder, UpdatesConfig(), *counts, lambda: self.pair.snapshot)
        self.updates.start()
        requests = (retrieval_of(live.requests[0]),)
        self.loader = Loader(self.config, CPU, STAGES, requests, self.updates)
        self.served = self.loader.load_first(1, lambda *_: None)
        self.like = next(iter(table_rows(live.files).values()))

    @property
    def pair(self) -> ServingPair:
        assert self.served is not None
        return self.served

    def row(self, ad_id: int, **more: Any) -> str:
        return json_row({**self.like, "ad_id": ad_id, **more})

    def update(self, **what: Any) -> None:
        sequence = self.updates.facts.sequence + 1
        self.updates.submit(update(sequence, **what).SerializeToString()).result(30)

    def load(self, version: int) -> None:
        self.served = self.taken(self.loader.load(version, None, self.pair))

    def show(self) -> None:
        self.served = self.taken(self.loader.show_changes(self.pair))
        assert self.loader.show_changes(self.pair) is self.pair

    @staticmethod
    def taken(pair: ServingPair | LoadFault) -> ServingPair:
        assert isinstance(pair, ServingPair), pair
        return pair

    def has(self, *ad_ids: int) -> list[bool]:
        return [place >= 0 for place in self.pair.snapshot.ads.ordinals(np.array(ad_ids)).tolist()]


@pytest.fixture
def scene(live: LiveRoot, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(live, tmp_path / "state")
    yield scene
    scene.updates.close(30.0)


def test_a_put_that_another_version_refuses_stops_no_others_and_comes_back(scene: Scene) -> None:
    """A version whose schema lacks a value of the put."""
    snapshot = scene.pair.snapshot
    country, *others = snapshot.schema.attributes
    assert isinstance(country, Attribute)
    schema = replace(
        snapshot.schema, attributes=(replace(country, values=country.values[1:]), *others)
    )
    plain = plain_snapshot(schema, snapshot.trie.vocab_sizes, [RawAd(1, (0, 0, 0, 0))])
    facts = replace(snapshot.facts, version=3, updates_watermark=1)
    write_snapshot(replace(plain, facts=facts), scene.live.root)
    scene.update(put=[scene.row(NEW[0])])
    scene.update(put=[scene.row(NEW[1], country=[country.values[0]])], remove=[1])
    scene.update(put=[scene.row(NEW[2], country=None)])
    scene.show()
    assert scene.has(*NEW[:3]) == [True, True, True]
    scene.load(3)
    assert scene.has(*NEW[:3], 1) == [False, False, True, False]  # it has the first update
    (fault,) = scene.pair.shown.refused.items()
    assert fault[0] == NEW[1]
    assert fault[1].startswith(f"country: {country.values[0]}: is not among the values")
    scene.update(put=[scene.row(NEW[1], country=None)])
    scene.show()
    assert scene.has(*NEW[:3]) == [False, True, True]
    assert not scene.pair.shown.refused
    scene.load(1)
    assert scene.has(*NEW[:3]) == [True, True, True]


def test_changes_that_every_version_has_are_forgotten(scene: Scene) -> None:
    for ad_id in NEW[:3]:
        scene.update(put=[scene.row(ad_id)])
    version = scene.live.add(1, updates_watermark=2)
    scene.load(version)
    assert scene.has(*NEW[:3]) == [False, False, True]
    scene.load(2)
    assert scene.has(*NEW[:3]) == [True, True, True]
    for old in (1, 2):
        shutil.rmtree(scene.live.folder(old))
    kept = len(scene.updates.changes_after(0)[1])
    scene.load(version)
    # The version that served until now would have needed them, had the load failed.
    assert len(scene.updates.changes_after(0)[1]) == kept == 3
    scene.load(scene.live.add(version, updates_watermark=2))
    assert [ad_id for ad_id, _ in scene.updates.changes_after(0)[1]] == [NEW[2]]


def test_a_full_update_that_takes_changes_back_begins_with_the_version_again(scene: Scene) -> None:
    known = scene.pair.snapshot.ads.ad_ids.tolist()[0]
    rows = [scene.row(ad_id) for ad_id in NEW[:2]]
    scene.update(put=rows, remove=[known])
    scene.show()
    assert scene.has(*NEW[:2], known) == [True, True, False]
    kept = scene.pair
    scene.update(full=True, put=rows, remove=[known])  # takes nothing back
    shutil.move(scene.live.folder(1), scene.live.root / "away")
    scene.show()
    assert scene.pair.users is kept.users
    scene.update(full=True, put=rows[1:])
    fault = scene.loader.show_changes(scene.pair)
    assert isinstance(fault, LoadFault)
    assert "no version 1 here" in fault.text
    shutil.move(scene.live.root / "away", scene.live.folder(1))
    scene.show()
    assert scene.has(*NEW[:2], known) == [False, True, True]


def test_puts_before_there_is_a_snapshot_are_refused_and_stops_are_taken(tmp_path: Path) -> None:
    counts = (lambda *_: None,) * 3
    updates = AdUpdates(tmp_path, UpdatesConfig(), *counts)
    updates.start()
    row = json.dumps({"ad_id": 7, "sid": [1, 2, 3, 4]})
    put = updates.submit(update(1, put=[row]).SerializeToString())
    with pytest.raises(ServiceError, match="not_ready"):
        put.result(30)
    assert updates.submit(update(1, stop={"ad": [7]}).SerializeToString()).result(30).applied
    updates.close(30.0)


@pytest.mark.usefixtures("no_collections")
def test_the_pair_before_a_change_is_freed_at_once(scene: Scene) -> None:
    for ad_id in NEW[:3]:
        before = weakref.ref(scene.pair), weakref.ref(scene.pair.index.csr_tokens)
        scene.update(put=[scene.row(ad_id)], remove=[1])
        scene.show()
        assert [part() for part in before] == [None, None]


@pytest.mark.usefixtures("no_collections")
def test_an_update_is_freed_at_once(scene: Scene) -> None:
    """Its rows may be a gigabyte, and collections are rare."""
    ids = []
    for sequence in (1, 2):
        message = update(sequence, remove=[sequence], parts=1, part=1, full=True)
        updated = scene.updates.submit(message.SerializeToString()).result(30)
        assert updated.update is not None
        ids.append(weakref.ref(updated.update.remove))
        del updated
    wait_until(lambda: ids[0]() is None, "the first one is freed")
