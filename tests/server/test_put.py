"""`grace admin put`, and `grace admin follow` with puts and folders, on real servers."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.client import AdminClient
from grace.configs.errors import CallError
from grace.proto import retrieval_pb2 as wire
from support.followers import Follower, following
from support.health import status
from support.in_process import complaint, invoke_grace, printed, reported
from support.raw_tables import numbers_of
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles
from support.text_shop import sku

pytestmark = pytest.mark.subprocess

NEW = 10**12


@dataclass(frozen=True)
class Catalogue:
    """The ads of the served catalogue. `own` are those of a reply, best first."""

    server: ServerProcess
    files: ServingFiles
    table: pa.Table
    own: Sequence[int]

    @staticmethod
    def of(server: ServerProcess, files: ServingFiles) -> "Catalogue":
        table = pq.read_table(files.catalogue / "ads.parquet").drop_columns(["title"])
        return Catalogue(server, files, table, reply_of(server, files))

    @property
    def shown(self) -> set[int]:
        """The ads of a reply now, without those of SIDs that take the place of an empty one."""
        return {ad for ad in reply_of(self.server, self.files) if ad >= NEW or ad in self.own}

    def wait_shown(self, ads: set[int]) -> None:
        self.server.wait_until(lambda: self.shown == ads, f"it serves {len(ads)} ads")

    def like(self, ad: int, *ids: int, **columns: Any) -> pa.Table:
        """Rows like an ad's, with other ids and some other columns."""
        row = self.row(ad)
        rows = [{**row, "ad_id": each, **columns} for each in ids]
        return pa.Table.from_pylist(rows, self.table.schema)

    def row(self, ad: int) -> dict[str, Any]:
        place = self.table["ad_id"].to_pylist().index(ad)
        return dict(self.table.slice(place, 1).to_pylist()[0])


def reply_of(server: ServerProcess, files: ServingFiles) -> list[int]:
    with Caller(server.address) as caller:
        return list(caller.call(message(files.requests[0], max_ads=10_000)).response.ad_ids)


def put_in(folder: Path, name: str, table: pa.Table) -> None:
    """Write the table under another name first."""
    pq.write_table(table, folder / f"{name}.unfinished")
    (folder / f"{name}.unfinished").rename(folder / name)


@pytest.fixture
def catalogue(operated: ServerProcess, serving_files: ServingFiles) -> Catalogue:
    return Catalogue.of(operated, serving_files)


def test_ads_of_tables_are_served_once_the_command_returns_and_are_removed_again(
    operated: ServerProcess, catalogue: Catalogue, tmp_path: Path
) -> None:
    first, second, *_ = catalogue.own
    pq.write_table(catalogue.like(first, *range(NEW, NEW + 7)), tmp_path / "a.parquet")
    lines = tmp_path / "b.jsonl"
    # Lines have no rules, so everybody may see the ad.
    row = {"ad_id": second, "sid": catalogue.row(first)["sid"], "countri": "GB"}
    lines.write_text(json.dumps(row) + "\n")
    to = ("--data", catalogue.files.catalogue, "--address", operated.admin)
    warned = invoke_grace("admin", "put", lines, *to).stderr
    assert "warning: ignored columns that may be rules: countri; name them in" in warned
    before = status(operated).updates.sequence
    found = reported("admin", "put", tmp_path / "a.parquet", lines, "--batch", "3", *to)
    assert (found["put"], found["removed"], found["refused"]) == (8, 0, [])
    assert (found["sequence"], found["served"]) == (before + 3, True)
    assert 0 < found["seconds"] < 60
    assert catalogue.shown == {*catalogue.own, *range(NEW, NEW + 7)}
    said = printed("admin", "status", "--address", operated.admin)
    waits = "0 wait, 0 do not fit"
    assert f"changes     8 put, 0 removed, {waits} (up to update {before + 3})\n" in said
    removed = ("--remove", str(NEW), "--remove", str(first), "--remove", str(NEW))
    done = invoke_grace("admin", "put", *removed, "--remove", str(NEW + 99), *to)
    assert done.stdout.startswith("0 ads put, 2 removed: served after ")
    assert done.stderr == "--remove: the server did not have 1 of these ads\n"
    with AdminClient(operated.admin) as client:
        explained = client.explain(wire.ExplainRequest(ad_id=first), 30.0)
    assert explained.text.endswith("an update has removed it; to serve it again, put it")
    assert catalogue.shown == {*catalogue.own, *range(NEW + 1, NEW + 7)} - {first}


def test_faulty_ads_are_named_and_the_others_are_served(
    operated: ServerProcess, catalogue: Catalogue, tmp_path: Path
) -> None:
    first = catalogue.own[0]
    lines = tmp_path / "new.jsonl"
    rows = [
        {"ad_id": NEW, "sid": catalogue.row(first)["sid"]},
        {"ad_id": NEW + 1, "sid": [1, 2, 3]},
        {"ad_id": NEW + 2, "sid": [1, 2, 3, 4], "country": "XX"},
    ]
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = invoke_grace(
        *("admin", "put", lines, "--data", catalogue.files.catalogue, "--address", operated.admin)
    )
    said = done.stdout.splitlines()
    assert f"refused: {lines} row 2, ad {NEW + 1}: sid '3 tokens': the SID length is 4" in said
    assert any(f"{lines} row 3, ad {NEW + 2}: country: XX: " in each for each in said)
    assert said[-1].startswith("1 ad put, 0 removed: served after ")
    assert (done.exit_code, "error: 2 ads refused; correct and put" in done.stderr) == (2, True)
    assert catalogue.shown == {*catalogue.own, NEW}


def test_ads_are_put_by_their_own_ids_with_the_sids_of_their_table(
    operated: ServerProcess, catalogue: Catalogue, shop: Path
) -> None:
    first = catalogue.own[0]
    row = catalogue.row(first)
    lines, sids = shop / "new.jsonl", shop / "new-sids.jsonl"
    new = {"sku": "brand new", "advertiser": "New, Inc.", "title": "A lamp"}
    lines.write_text(f"{json.dumps(new)}\n")
    sids.write_text(json.dumps({"item_id": "brand new", "sid": row["sid"]}) + "\n")
    to = ("--data", shop, "--address", operated.admin)
    done = invoke_grace("admin", "put", lines, *to)
    assert "refused: " in done.stdout
    assert "the ad has no SID in " in done.stdout
    printed("admin", "put", lines, "--sids", sids, *to)
    number = numbers_of(shop / "ids.parquet")["brand new"]
    request = shop / "request.json"
    request.write_text(json.dumps(catalogue.files.requests[0]))
    asked = ("--request", request, "--data", shop, "--max-ads", "10000")
    for changed, title in (((), "no usable row in the ads tables"), (("--ads", lines), "A lamp")):
        said = printed("retrieve", *asked, *changed, "--address", operated.address)
        assert f". {title} (ad brand new, p(SID) = " in said
    user = catalogue.files.requests[0]["user"]
    rows = {**new, "country_exclude": user["country"]["values"]}, {**new, "country": "refused"}
    lines.write_text("\n".join(map(json.dumps, rows)))
    excluded = "the tables' rules exclude this user, so the server has other rules"
    assert excluded in printed("retrieve", *asked, *changed, "--address", operated.address)
    assert excluded not in said
    printed("admin", "stop", "advertiser", "New, Inc.", *to)
    assert number not in reply_of(operated, catalogue.files)
    printed("admin", "put", "--remove", sku(first), *to)
    assert first not in catalogue.shown


def test_no_put_takes_a_number_that_the_snapshot_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wire.GetStatusResponse()
    found.updates.sequence, found.snapshot.updates_watermark = 2, 3
    monkeypatch.setattr(AdminClient, "status", lambda *_: found)
    fault = "the server has updates up to 2, and its snapshot those up to 3; send a FULL update"
    with AdminClient("localhost:1") as client, pytest.raises(CallError, match=fault):
        client.update_next(wire.UpdateAdsRequest(remove=[1]), 1.0)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "nothing to do: name a table of ads to put, or --remove AD"),
        (("TABLE",), "give --data FOLDER, which says what its columns mean"),
        (("TABLE", "--data", "DATA", "--remove", "1"), "have the ad with number 1; leave it out"),
        (("none.csv", "--data", "DATA"), "none.csv: no such file or folder"),
        (("--remove", "1", "--data", "OTHER"), "/ads.parquet), but that of the served or given"),
    ],
)
def test_what_cannot_be_put_is_refused_and_nothing_is_sent(
    operated: ServerProcess,
    catalogue: Catalogue,
    tmp_path: Path,
    arguments: tuple[str, ...],
    fault: str,
) -> None:
    table = tmp_path / "new.jsonl"
    table.write_text('{"ad_id": 1, "sid": [1, 2, 3, 4]}\n')
    named = {"TABLE": str(table), "DATA": str(catalogue.files.catalogue), "OTHER": str(tmp_path)}
    space = {"grace.sid_space": "other"}
    pq.write_table(catalogue.table.replace_schema_metadata(space), tmp_path / "ads.parquet")
    shutil.copy(catalogue.files.catalogue / "targeting.yaml", tmp_path)
    before = status(operated).updates.sequence
    given = [named.get(each, each) for each in arguments]
    assert fault in complaint("admin", "put", *given, "--address", operated.admin)
    assert status(operated).updates.sequence == before


def test_a_file_of_updates_may_put_and_remove_ads_and_have_a_full_in_parts(
    operated: ServerProcess, catalogue: Catalogue, tmp_path: Path
) -> None:
    first, second, *_ = catalogue.own
    last, file = status(operated).updates.sequence, tmp_path / "updates.jsonl"
    sid = catalogue.row(first)["sid"]

    def append(number: int, **fields: Any) -> None:
        kind = fields.pop("kind", "KIND_DELTA")
        with file.open("a") as lines:
            lines.write(json.dumps({"sequence": last + number, "kind": kind, **fields}) + "\n")

    with following(file, operated.admin) as follower:
        put = [{"ad_id": NEW, "sid": sid}, json.dumps({"ad_id": NEW + 1, "sid": sid})]
        append(1, put=[*put, {"ad_id": NEW + 2, "sid": [1]}], remove=[second])
        follower.wait_fault(1, f"line 1: put[2]: ad {NEW + 2}: sid: 1 token: the SID length is 4")
        append(2, remove=[str(NEW + 1)], wait_visible=True)
        follower.wait_done(f"update {last + 2} is in force")
        assert catalogue.shown == {*catalogue.own, NEW} - {second}
        append(3, kind="KIND_FULL", part=1, parts=2)
        append(3, remove=[second])
        follower.wait_fault(2, f"line 3: part 2 of update {last + 3} is missing after it")
        for part in (1, 2, 3):
            row = {"ad_id": NEW + 10 + part, "sid": sid}
            append(3, kind="KIND_FULL", part=part, parts=3, put=[row], wait_visible=True)
            if part == 2:
                time.sleep(0.5)
                assert status(operated).updates.sequence == last + 2
        follower.wait_done(f"update {last + 3} is in force")
        assert catalogue.shown == {*catalogue.own, *range(NEW + 11, NEW + 14)}
        append(4, kind="KIND_FULL", part=2, parts=2)
        follower.wait_fault(4, "line 8: the server has not got all parts of the update")
        assert "line 1: put[2]" in follower.faults[2]  # the file was read again


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    folder = tmp_path / "incoming"
    folder.mkdir()
    return folder


def test_tables_that_come_into_a_folder_are_sent_in_the_order_of_their_names(
    operated: ServerProcess, catalogue: Catalogue, incoming: Path
) -> None:
    first, own = catalogue.own[0], {*catalogue.own}
    options = ("--data", catalogue.files.catalogue)
    put_in(incoming, "b.parquet", catalogue.like(first, NEW, NEW + 1, country=["SE"]))
    put_in(incoming, "c.parquet", catalogue.like(first, NEW))
    pq.write_table(catalogue.like(first, NEW + 9), incoming / "d.parquet.unfinished")
    pq.write_table(catalogue.like(first, NEW + 8), incoming / "_hidden.parquet")
    (incoming / "table.txt").touch()
    os.utime(incoming / "table.txt", (7, 7))
    with following(incoming, operated.admin, *options) as follower:
        catalogue.wait_shown({*own, NEW})
        follower.wait_done("c.parquet: 1 ad put")
        skipped = [each["done"] for each in follower.printed if "not sent" in each["done"]]
        assert [each.partition(": rename")[0] for each in skipped] == ["table.txt: not sent"]
        put_in(incoming, "a.parquet", catalogue.like(first, NEW + 2))
        catalogue.wait_shown({*own, NEW, NEW + 2})
        refused = operated.metric("grace_updates_total", result="refused")
        (incoming / "d.parquet").write_text("no table")
        follower.wait_fault(1, f"{incoming}/d.parquet: not a readable Parquet file")
        assert "tries again every second, and later tables wait" in follower.faults[0]
        operated.wait_until(
            lambda: operated.metric("grace_updates_total", result="refused") == refused + 1,
            "the server counts the fault, so that its alert fires",
        )
        put_in(incoming, "e.parquet", catalogue.like(first, NEW + 5))
        os.utime(incoming / "b.parquet")
        catalogue.wait_shown({*own, NEW + 2})
        put_in(incoming, "d.parquet", catalogue.like(first, NEW + 4, sid=[99, 1, 1, 1]))
        follower.wait_done("followed again")
        catalogue.wait_shown({*own, NEW + 2, NEW + 5})
        assert "d.parquet row 1, ad" in follower.faults[1]
    with following(incoming, operated.admin, *options) as follower:
        put_in(incoming, "b.parquet", catalogue.like(first, NEW + 7))
        follower.wait_done("b.parquet: 1 ad put")
        catalogue.wait_shown({*own, *(NEW + each for each in (2, 5, 7))})
        sent = [each["done"] for each in follower.printed if "put" in each.get("done", "")]
        assert [each.partition(" (up")[0] for each in sent] == ["b.parquet: 1 ad put"]


def test_no_table_is_lost_if_follower_and_server_are_killed_or_the_server_loses_its_state(
    serving_files: ServingFiles, incoming: Path, tmp_path: Path
) -> None:
    def config(state: str, port: str) -> Path:
        name, folder = f"{tmp_path.name}.yaml", str(tmp_path / state)
        ready = {"await_sender": True}
        admin = {"port": int(port)}
        return serving_files.write_config(name, state_dir=folder, updates=ready, admin=admin)

    port, number, steps = "0", 0, Steps(serving_files, incoming)
    for state in ("state", "state", "other"):
        with ServerProcess(config(state, port), ready=False) as server:
            port = server.admin.rpartition(":")[2]
            for _ in range(3):
                with steps.follow(server, ended_by=signal.SIGKILL):
                    for _ in range(4):
                        steps.put(number := number + 1)
            with steps.follow(server) as follower:
                server.wait_ready()
                steps.assert_kept(server, number)
            assert not [each for each in follower.faults if "UNAVAILABLE" not in each]


@pytest.mark.parametrize(
    ("noted", "fault"),
    [
        ("junk", "is not a list of tables that were sent; remove it, and all are sent again"),
        ('{"sequence": 7}', "is not a list of tables that were sent"),
        (None, "Is a directory; name another file with --sent"),
    ],
)
def test_a_note_of_sent_tables_that_cannot_be_used_ends_the_command(
    operated: ServerProcess, incoming: Path, tmp_path: Path, noted: str | None, fault: str
) -> None:
    sent = tmp_path / "sent"
    if noted is None:
        sent.mkdir()
    else:
        sent.write_text(noted)
    found = complaint("admin", "follow", incoming, "--sent", sent, "--address", operated.admin)
    assert found.startswith(f"{sent}: {fault}")


@dataclass
class Steps:
    """Tables with an ad of their own, and an ad that each table replaces: it gets another SID."""

    files: ServingFiles
    incoming: Path

    @property
    def sids(self) -> list[list[int]]:
        return list(pq.read_table(self.files.catalogue / "ads.parquet")["sid"].to_pylist()[:99])

    def put(self, number: int) -> None:
        sids = [self.sids[number], self.sids[number]]
        columns = {"ad_id": [NEW, NEW + number], "sid": pa.array(sids, pa.list_(pa.uint16()))}
        lines = pa.table(columns).to_pylist()
        path = self.incoming / f"{number:03}.jsonl"
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
        unfinished.rename(path)

    def follow(self, server: ServerProcess, **how: Any) -> AbstractContextManager[Follower]:
        return following(self.incoming, server.admin, "--data", self.files.catalogue, **how)

    def assert_kept(self, server: ServerProcess, number: int) -> None:
        with AdminClient(server.admin) as client:

            def sid(ad: int) -> list[int]:
                return list(client.explain(wire.ExplainRequest(ad_id=ad), 30.0).sid)

            wanted: Callable[[], bool] = lambda: sid(NEW) == self.sids[number]  # noqa: E731
            wait_until(wanted, f"ad {NEW} is as table {number} has it")
            for each in range(1, number + 1):
                assert sid(NEW + each) == self.sids[each]
