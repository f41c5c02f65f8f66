"""Put the ads of tables on a server: of those that a caller names, or that come into a folder."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import monotonic, sleep, time
from typing import NoReturn

from grace.client.admin_client import AdminClient
from grace.client.follower import LOOK_SECONDS, RETRY_SECONDS, Follower, may_pass
from grace.configs.errors import CallError, GraceError, InputError
from grace.configs.options import PutOptions
from grace.index.builder.plan import BuildSpec, plan_build
from grace.index.changes.put_rows import PutRow, put_rows
from grace.index.tables.addresses import ENDINGS, ending_format
from grace.index.tables.data_folder import read_data_folder
from grace.index.tables.item_numbers import replacing
from grace.index.tables.sid_table import require_space
from grace.proto import retrieval_pb2 as wire

_MOST_CHARACTERS = 8 << 20  # of the rows in one update: a server takes 64 MiB
_UNFINISHED_SECONDS = 10.0  # how old a file of another ending may be while a program writes it

Stamps = Mapping[str, Sequence[int]]
"""The time and size of files, by name. Another file of the same name has others."""


def counted(ads: int) -> str:
    return f"{ads:,} ad{'' if ads == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Sent:
    sequence: int  # of the last update
    visible: int  # the last update whose changes are served
    put: int
    removed: int
    absent: int  # ads to remove that the server did not have
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdsSender:
    """Sends the rows of tables in updates with the next free numbers."""

    client: AdminClient
    options: PutOptions
    timeout: float
    notify: Callable[[str], None]

    def send(
        self, tables: Sequence[str], removed: Sequence[int] = (), *, wait: bool = False
    ) -> Sent:
        """Put the ads and remove others. Sent again, this changes nothing.

        With `wait`, return once the server serves them, or cannot.
        """
        found = self.client.status(self.timeout)
        if removed and self.options.data is not None:
            require_space(read_data_folder(self.options.data), found.snapshot.sid_space)
        rows, refused = self._rows(tables, found) if tables else ([], [])
        if both := {row.ad_id for row in rows}.intersection(removed):
            raise InputError(
                f"--remove: the tables have the ad with number {min(both)}; leave it out of "
                "--remove or of the tables"
            )
        last: wire.UpdatesStatus | wire.UpdateAdsResponse = found.updates
        updates, of_server, absent = [*self._batches(rows)], 0, 0
        updates += [([], wire.UpdateAdsRequest(remove=removed))] if removed else []
        for own, update in updates:
            update.wait_visible = wait and update is updates[-1][1]
            last = reply = self.client.update_next(update, self.timeout)
            of_server += len(reply.refused)
            absent += reply.unknown["ad"].count
            refused += [f"{own[each.place].source}: {each.fault}" for each in reply.refused]
        put, gone = len(rows) - of_server, len(removed) - absent
        return Sent(last.sequence, last.visible, put, gone, absent, tuple(refused))

    def _rows(
        self, tables: Sequence[str], found: wire.GetStatusResponse
    ) -> tuple[list[PutRow], list[str]]:
        if self.options.data is None:
            raise InputError(f"{tables[0]}: give --data FOLDER, which says what its columns mean")
        if not found.HasField("snapshot"):
            raise CallError("UNAVAILABLE", "", "the server has no snapshot yet; try again")
        data = read_data_folder(self.options.data)
        spec = BuildSpec(
            data.of_ads_in(tables, self.options.sids),
            root=self.options.data,
            sid_space=found.snapshot.sid_space,
            vocab_sizes=tuple(found.model.vocab_sizes),
            without=self.options.without,
        )
        return put_rows(plan_build(spec, lambda *_: None, self.notify))

    def _batches(
        self, rows: Sequence[PutRow]
    ) -> Iterator[tuple[list[PutRow], wire.UpdateAdsRequest]]:
        while rows:
            sizes = accumulate(len(row.text) for row in rows[: self.options.batch])
            count = max(1, sum(size <= _MOST_CHARACTERS for size in sizes))
            own, rows = [*rows[:count]], rows[count:]
            yield own, wire.UpdateAdsRequest(put=[row.text for row in own])


class AdsFolderFollower(Follower):
    """Sends each table that comes into a folder, in the order of their names.

    `sent` is a file that notes which tables the server has. It is written after the server's reply,
    so after a crash one table may be sent again.
    """

    def __init__(
        self, folder: Path, sent: Path, sender: AdsSender, show: Callable[[str, bool], None]
    ) -> None:
        super().__init__(sender.client, sender.timeout, show)
        self._folder, self._file, self._sender = folder, sent, sender
        self._fault = ""  # of the folder or a table, which is tried again
        self._sent: Stamps = {}
        self._named: set[str] = set()  # files that are not tables, and were shown

    def run(self) -> NoReturn:
        self._read_sent()
        self._show(f"{self._folder}: followed from update {self.sequence}", False)
        confirmed = -RETRY_SECONDS
        while True:
            try:
                if self._send_new() or monotonic() >= confirmed + RETRY_SECONDS:
                    reply = self._client.confirm_updates(self.sequence, self._timeout)
                    if reply.sequence < self.sequence:
                        self._begin_again(reply.sequence)
                    confirmed = monotonic()
                self._waits_after = ""
            except CallError as error:
                if not may_pass(error):
                    raise
                self._wait_after(error)
            self._page(bool(self._fault))
            sleep(RETRY_SECONDS if self._fault else LOOK_SECONDS)

    def _send_new(self) -> bool:
        """Send tables until one has a fault. It must not be skipped: others may replace its ads."""
        fault, any_sent = "", False
        try:
            found = self._found()
            for name in [each for each in found if self._sent.get(each) != found[each]]:
                sent = self._sender.send([str(self._folder / name)])
                if sent.sequence < self.sequence:
                    self._begin_again(sent.sequence)
                    return False
                self.sequence, any_sent = sent.sequence, True
                kept = {each: self._sent[each] for each in found if each in self._sent}
                self._note({**kept, name: found[name]})
                for refused in sent.refused:
                    self._show(refused, True)
                of_refused = f", {len(sent.refused):,} refused" if sent.refused else ""
                self._show(
                    f"{name}: {counted(sent.put)} put{of_refused} (update {sent.sequence})", False
                )
        except GraceError as error:
            if isinstance(error, CallError) and may_pass(error):
                raise
            fault = f"{error}; the follower tries again every second, and later tables wait"
        except OSError as error:
            fault = f"{error.filename or self._folder}: {error.strerror or error}"
        if fault != self._fault:
            self._fault = fault
            self._show(fault or f"{self._folder}: followed again", bool(fault))
        return any_sent

    def _found(self) -> Stamps:
        with os.scandir(self._folder) as entries:
            all_there = [each for each in entries if each.name[0] not in "._"]
        stats = {each.name: each.stat() for each in all_there if ending_format(each.name)}
        self._name([each for each in all_there if each.name not in {*stats, *self._named}])
        return {name: [stats[name].st_mtime_ns, stats[name].st_size] for name in sorted(stats)}

    def _name(self, others: Sequence[os.DirEntry[str]]) -> None:
        """Show once that these are not sent, but not while a program writes them."""
        for each in others:
            with suppress(FileNotFoundError):  # a program has renamed or removed it
                if each.is_file() and each.stat().st_mtime < time() - _UNFINISHED_SECONDS:
                    self._named.add(each.name)
                    self._show(
                        f"{each.name}: not sent: rename it if it is a table, to {ENDINGS}", False
                    )

    def _begin_again(self, sequence: int) -> None:
        """Send all tables again: the server has fewer updates than before, so it lost its state."""
        self.sequence = sequence
        self._note({})
        self._show(f"{self._folder}: sent again from its first table", False)

    def _read_sent(self) -> None:
        try:
            if self._file.exists():
                noted = json.loads(self._file.read_text(encoding="utf-8"))
                self.sequence, self._sent = int(noted["sequence"]), dict(noted["sent"])
            self._note(self._sent)
        except OSError as error:
            remedy = "name another file with --sent"
            raise InputError(f"{self._file}: {error.strerror}; {remedy}") from None
        except (ValueError, TypeError, KeyError):
            fault = "is not a list of tables that were sent; remove it, and all are sent again"
            raise InputError(f"{self._file}: {fault}") from None

    def _note(self, sent: Stamps) -> None:
        self._sent = sent
        with replacing(self._file) as unfinished:
            noted = {"sequence": self.sequence, "sent": sent}
            unfinished.write_text(json.dumps(noted), encoding="utf-8")
