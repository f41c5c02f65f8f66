"""A day of puts and removals, in minutes: what a new base has leaves nothing behind."""

import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from grace.bench.load.soak.holdings import CHANCE, Holdings, holdings_of
from grace.index.storage import load_snapshot
from grace.index.updates.log import REWRITE_BYTES
from support.arrays import assert_same_arrays
from support.fresh_ads import json_row, table_row, table_rows
from support.in_process import printed
from support.live_snapshots import ASKED, LiveRoot
from support.plain_builder import plain_snapshot
from support.plain_replies import assert_plain
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.stage_cases import raw_ad
from support.state_machine import AT
from support.update_calls import Updater

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

BASES, UPDATES, CHECKED = 12, 360, 10
NEW, CHANGED, UNKNOWN = 20, 4, 100  # ads in an update: 106,560 puts and more removals in all
SIZES = (64,) * 4  # of the tiny catalogue


class Day:
    """A server of version 2, and the ads that it must have: rows as lines of JSON, by id."""

    def __init__(self, live: LiveRoot, server: ServerProcess) -> None:
        self.live, self.server, self.sent = live, server, 0
        self.updater, self.caller = Updater(server), Caller(server.address)
        self.schema, self.rng = load_snapshot(live.root).schema, np.random.default_rng(7)
        self.rows = [*table_rows(live.files).values()][::2]
        self.table = self.base = {row["ad_id"]: json_row(row) for row in self.rows}
        self.raw = lru_cache(9999)(lambda row: raw_ad(table_row(row), self.schema))

    def change(self) -> None:
        """Put and remove ads. Rules, values and some SIDs are new. Compare some replies."""
        self.sent += 1
        rng, first, checked = self.rng, 1000 * self.sent, self.sent % CHECKED == 0
        known = rng.choice([*self.table], NEW + CHANGED, replace=False).tolist()
        put = dict.fromkeys((*range(first, first + NEW), *known[NEW:]), "")
        for ad_id in put:
            row = {**self.rows[rng.integers(len(self.rows))], "ad_id": ad_id}
            if ad_id % 3 == 0:
                row["sid"] = rng.integers(SIZES).tolist()
            put[ad_id] = json_row(row | {"location_exclude": [f"{self.sent}/{ad_id}"]})
        gone = [*known[:NEW], *range(first + NEW, first + NEW + UNKNOWN)]
        self.updater.apply(self.sent, put=put.values(), remove=gone, wait_visible=checked)
        self.table = {key: row for key, row in self.table.items() if key not in known} | put
        if checked:
            request = {**self.live.requests[self.sent % ASKED], "at": AT + 20_000 * self.sent}
            reply = self.caller.call(message(request)).response
            assert_plain(self.schema, [*map(self.raw, self.table.values())], request, reply)

    def rebase(self, last: int) -> None:
        """Build the next version onto the last one, and wait until the server has it."""
        table, before, self.base = self.table, self.base, self.table
        which = ["--onto", str(last), "--updates-watermark", str(self.sent)]
        for _ in range(CHECKED):
            self.change()  # the version lacks these
        which += [f"--remove={ad_id}" for ad_id in before.keys() - table.keys()]
        file, data = self.live.root.with_suffix(".jsonl"), self.live.files.catalogue
        file.write_text("\n".join(row for key, row in table.items() if before.get(key) != row))
        printed("build", "--data", data, "--root", self.live.root, "--ads", file, *which)
        self.server.wait_log("swapped", last - 1)
        shutil.rmtree(self.live.folder(last))


def test_a_day_of_puts_leaves_memory_and_log_as_they_were(live: LiveRoot, tmp_path: Path) -> None:
    live.publish(2)
    shutil.rmtree(live.folder(1))
    config = live.write_config("puts.yaml", state_dir=str(tmp_path), updates={"min_interval_ms": 0})
    held, log = list[Holdings](), tmp_path / "ad_updates" / "log"
    with ServerProcess(config) as server:
        day = Day(live, server)
        for last in range(2, 2 + BASES):
            for _ in range(UPDATES):
                day.change()
            day.rebase(last)
            held.append(holdings_of(server.pid))
            assert log.stat().st_size < 3 * REWRITE_BYTES
    for what, most in {"memory_mib": 16, **CHANCE}.items():  # kept changes would take 40 MiB
        assert getattr(held[-1], what) <= getattr(held[BASES // 3], what) + most, held
    base = plain_snapshot(day.schema, SIZES, map(day.raw, day.base.values()))
    assert_same_arrays(load_snapshot(live.root), base)
