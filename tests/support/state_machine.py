"""A real server that is operated in any order, and must do as the plain one."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from time import sleep
from typing import Any

import grpc
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from grace.index.storage.folder import version_name
from grace.proto.retrieval_pb2 import RetrieveResponse, UpdateAdsResponse
from support.fresh_ads import json_row
from support.live_snapshots import LiveRoot
from support.operators import operator_of
from support.oracle import RawAd
from support.plain_replies import ads_of_a_sid
from support.plain_replies import assert_plain as plain_rules
from support.plain_server import Answers, Catalogue, Live, Plain, RefusedError, Seen
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles
from support.stage_cases import GENERATION, JsonRequest
from support.strategies import some_of_each
from support.update_calls import update

MOST_VERSIONS = 6
JUNK = b"junk\n"
AT = 1_793_500_000_000  # of all requests, so that replies can be compared
NOWHERE = range(10**15, 10**15 + 12)
"""Ids that no snapshot has."""
FAULTY = '{"ad_id": 7, "sid": [1, 1, 1, 65535]}'
ENTITIES = ("campaign", "advertiser")
RESULTS = ("applied", "repeated", "refused", "failed", "part")


class Machine(RuleBasedStateMachine):
    """A client calls the server all the time, while rules operate it."""

    def __init__(self, files: ServingFiles, answers: Answers, front_ends: int = 0) -> None:
        super().__init__()
        self.answers, self.plain = answers, Plain()
        self.requests = [{**each, "at": AT} for each in answers.live.requests[:3]]
        replies = [answers.reply(Catalogue(1), 0, Live(), each) for each in self.requests]
        self.some_ads = sorted({ad for each in replies for ad in ads_of_a_sid(each)})
        self.folder = Path(mkdtemp(dir=files.folder))
        self.live = LiveRoot.write(self.folder, files)
        self.config = self.live.write_config(
            f"{self.folder.name}.yaml",
            state_dir=str(self.folder / "state"),
            listen={"linger_seconds": 0.0, "front_ends": front_ends},
        )
        self.state = 0, Live()
        self.start()

    def start(self) -> None:
        self.end = ExitStack()
        self.server = self.end.enter_context(ServerProcess(self.config))
        self.operator = self.end.enter_context(operator_of(self.server))
        self.seen: list[Seen] = []
        self.calls = threading.Event()
        self.calls.set()
        self.client = threading.Thread(target=self.call_on, args=(self.server.address,))
        self.client.start()
        self.end.callback(self.stop_calls)
        self.caller = Caller(self.server.address)
        self.end.callback(self.caller.close)

    def stop_calls(self) -> None:
        self.calls.clear()
        self.client.join()

    def call_on(self, address: str) -> None:
        caller, number = Caller(address), 0
        while self.calls.is_set():
            number = (number + 1) % len(self.requests)
            before = self.state
            outcome = caller.call(message(self.requests[number]))
            self.seen.append(Seen(number, before, self.state, outcome))
            sleep(0.005)
        caller.close()

    def teardown(self) -> None:
        self.end.close()
        shutil.rmtree(self.folder)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Take any step. As rules of their own, most would be left out of each sequence."""
        steps: list[Callable[[st.DataObject], None]] = [self.update, self.retrieve, self.load]
        steps += [self.roll_back, self.publish, lambda _: self.unpin()]
        steps += [self.publish_another] * (len(self.plain.like) < MOST_VERSIONS)
        steps += [self.lose_current] * self.plain.readable
        steps += [self.restart_somehow] * self.plain.can_start
        data.draw(st.sampled_from(steps))(data)

    def publish(self, data: st.DataObject) -> None:
        self.published(data.draw(st.sampled_from([*self.plain.like])))

    def publish_another(self, data: st.DataObject) -> None:
        bad = data.draw(st.booleans())
        damage = (lambda folder: (folder / "ad_weight.npy").unlink()) if bad else None
        mark = data.draw(st.integers(0, self.plain.updates.sequence + 1))
        self.published_another(data.draw(st.sampled_from([1, 2])), damage, mark)

    def published_another(
        self, like: int, damage: Callable[[Path], object] | None = None, mark: int = 0
    ) -> int:
        """Publish a version that has the updates up to `mark`."""
        version = self.live.add(like, updates_watermark=mark)
        self.plain.like[version], self.plain.marks[version] = like, mark
        if damage is not None:
            self.plain.bad.add(version)
            damage(self.live.folder(version))
        self.published(version)
        return version

    def published(self, version: int) -> None:
        if self.live.folder(version).exists():
            self.live.publish(version)
        else:  # `grace publish` refuses it
            self.write_current(f"{version_name(version)}\n".encode())
        self.plain.publish(version)
        self.check()

    def lose_current(self, data: st.DataObject) -> None:
        self.current_becomes(data.draw(st.sampled_from([None, JUNK])))

    def current_becomes(self, content: bytes | None) -> None:
        """Let CURRENT go, or hold junk."""
        if content is None:
            (self.live.root / "CURRENT").unlink()
        else:
            self.write_current(content)
        self.plain.lose_current()
        self.check()

    def write_current(self, content: bytes) -> None:
        """Replace CURRENT at once: a look in the middle of a write would find something else."""
        new = self.live.root / "new"
        new.write_bytes(content)
        new.rename(self.live.root / "CURRENT")

    def load(self, data: st.DataObject) -> None:
        checkpoint = data.draw(st.sampled_from([None, None, 0, 1]))
        self.loaded(data.draw(st.sampled_from([0, *self.plain.like])), checkpoint)

    def loaded(self, version: int = 0, checkpoint: int | None = None) -> str:
        folder = "" if checkpoint is None else self.answers.checkpoints[checkpoint]
        return self.both(
            lambda: self.plain.load(version, checkpoint),
            lambda: self.operator.load(version, folder).changed,
        )

    def roll_back(self, data: st.DataObject) -> None:
        self.rolled_back(data.draw(st.sampled_from([0, *self.plain.like])))

    def rolled_back(self, version: int) -> None:
        self.both(
            lambda: self.plain.roll_back(version),
            lambda: self.operator.roll_back(version).previous_version,
        )

    def unpin(self) -> None:
        self.both(self.plain.unpin, lambda: self.operator.unpin().previous_pin)

    def update(self, data: st.DataObject) -> None:
        """Stop, resume and weigh ads. A number may have been before, or leave one out."""
        full = data.draw(st.sampled_from([False, False, True]))
        ahead = data.draw(st.sampled_from([1, 1, 1, 0, 2]))
        ids = self.some_ids | {"ad": [*self.some_ads, *NOWHERE]}
        changes: dict[str, Any] = {"stop": data.draw(some_of_each(ids))}
        changes["weights"] = data.draw(
            st.dictionaries(st.sampled_from(self.some_ads), st.sampled_from([-1.5, 2.25, 1e9]))
        )
        if not full:
            stopped: dict[str, list[int]] = {}
            for level, each in sorted(self.plain.updates.stopped):
                stopped.setdefault(level, []).append(each)
            changes["resume"] = {
                level: some - changes["stop"].get(level, frozenset())
                for level, some in data.draw(some_of_each(stopped)).items()
            }
            some = data.draw(st.frozensets(st.sampled_from(self.some_ads)))
            changes["unweight"] = sorted(some - changes["weights"].keys())
        rows = data.draw(st.dictionaries(self.any_ads, st.sampled_from(self.some_ads), max_size=4))
        changes["put"] = [self.row(*each) for each in rows.items()]
        changes["remove"] = sorted(data.draw(st.frozensets(self.any_ads)) - rows.keys())
        self.updated(ahead, full=full, **changes)

    @property
    def any_ads(self) -> st.SearchStrategy[int]:
        return st.sampled_from([*self.some_ads, *NOWHERE])

    def row(self, ad_id: int, like: int) -> str:
        """Return the row of another ad, for this one."""
        return json_row({**self.answers.rows[like], "ad_id": ad_id})

    def updated(self, ahead: int = 1, **changes: Any) -> None:
        """Send an update. To its puts, add one that is refused."""
        sequence = max(1, self.plain.updates.sequence + ahead)
        request, real = (update(sequence, wait_visible=True, **changes) for _ in range(2))
        real.put.extend([FAULTY] * (len(request.put) > 0))
        steps, before = self.state
        served = self.catalogue

        def plainly() -> bool:
            applied = self.plain.update(request)
            now = Live.under(self.plain.updates)
            settled = before.changes == now.changes
            both = before.stopped & now.stopped
            self.state = steps + 1, Live(both, changes=now.changes, settled=settled)
            return applied

        def really() -> bool:
            reply: UpdateAdsResponse = self.operator.stub.UpdateAds(real, timeout=60)
            now = Live.under(self.plain.updates)
            self.state = steps + 2, now
            assert reply.sequence == reply.visible == self.plain.updates.sequence
            assert reply.ads_stopped == len(now.stops(self.ads.values()))
            found = self.catalogue, request, served
            assert dict(reply.unknown) == (self.answers.unknown(*found) if reply.applied else {})
            assert [each.place for each in reply.refused] == [len(request.put)][: len(real.put)]
            return reply.applied

        text = self.both(plainly, really)
        last = self.plain.updates.sequence
        gap = f"sequence: {request.sequence} does not follow {last}; send {last + 1}, or a FULL upd"
        assert not text or text.startswith(gap)

    @property
    def catalogue(self) -> Catalogue:
        return Catalogue.of(self.plain, self.plain.served, self.state[1])

    @property
    def ads(self) -> dict[int, RawAd]:
        return self.answers.ads(self.catalogue)

    @property
    def some_ids(self) -> dict[str, list[int]]:
        """Return the entities of some ads, by level."""
        ads = [self.answers.ads(Catalogue(1))[each] for each in self.some_ads]
        return {
            name: sorted({ad.entities[name] for ad in ads if name in ad.entities})
            for name in ENTITIES
        }

    def retrieve(self, data: st.DataObject) -> None:
        profile = data.draw(st.sampled_from([*GENERATION.profiles]))
        entities = some_of_each(self.some_ids).map(
            lambda given: {name: {"ids": sorted(ids)} for name, ids in given.items()}
        )
        limits: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
            {
                "max_ads": st.sampled_from([1, 7, 1000]),
                "priority": st.sampled_from(["NORMAL", "LOW"]),
            },
            optional={
                "exclude_ads": st.lists(st.sampled_from([*self.some_ads, *NOWHERE])),
                "exclude": entities,
                "at_most": st.dictionaries(st.sampled_from(ENTITIES), st.integers(0, 2)),
            },
        )
        user = data.draw(st.sampled_from(self.answers.live.requests))
        request = {**user, "profile": profile, "at": AT, **data.draw(limits)}
        served = self.plain.served, self.plain.checkpoint
        reply = self.caller.call(message(request)).response
        assert (reply.snapshot_version, self.answers.ids.index(reply.checkpoint)) == served
        self.assert_plain(request, reply, self.state[1])

    def restart_somehow(self, data: st.DataObject) -> None:
        self.restart(kills=data.draw(st.booleans()))

    def restart(self, kills: bool) -> None:
        self.stop_calls()
        if kills:
            self.server.kill()
        else:
            self.server.terminate()
            assert self.server.wait() == 0
        self.end.close()
        self.start()
        self.plain.restart()
        self.check()

    def both(self, plainly: Callable[[], int], really: Callable[[], int]) -> str:
        """Require the same result, or the same refusal. Return the refusal's text."""
        text = ""
        try:
            expected: int | str = plainly()
        except RefusedError as refused:
            expected = str(refused)
        try:
            found: int | str = really()
        except grpc.RpcError as error:
            given: Any = error
            found, text = str(dict(given.trailing_metadata())["grace-reason"]), given.details()
        assert found == expected
        self.check()
        return text

    def check(self) -> None:
        """Require that status, metrics and answers are the plain ones."""
        expected, server = self.expected(), self.server
        server.wait_until(lambda: self.reported() == expected, f"{expected}, not {self.reported()}")
        count = len(self.seen)
        server.wait_until(lambda: len(self.seen) > count + 3, "each request has an answer since")
        seen = self.seen[:]
        del self.seen[: len(seen)]
        for each in seen:
            self.check_answer(each)
        latest = [each.outcome.response for each in seen[-3:]]
        served = self.plain.served, self.answers.ids[self.plain.checkpoint]
        assert {(each.snapshot_version, each.checkpoint) for each in latest} == {served}

    def expected(self) -> dict[str, object]:
        """Return what status and metrics must say."""
        plain, updates = self.plain, self.plain.updates
        stopped = len(self.state[1].stops(self.ads.values()))
        rows = [row for _, _, row in self.catalogue.changes]
        put, removed = len(rows) - rows.count(None), rows.count(None)
        return {
            "served": (plain.served, plain.served),
            "current": plain.current if plain.readable else 0,
            "pin": (*(plain.pin or (0, 0)), plain.pin is not None),
            "failed": (plain.failed if plain.readable else 0),
            "fault": plain.failed != 0 or not plain.readable,
            "loads": plain.loads,
            "sequence": (updates.sequence, updates.sequence),
            "stopped": Counter(level for level, _ in updates.stopped),
            "ads_stopped": (stopped, stopped),
            "changes": (updates.sequence, updates.sequence, put, put, removed, 0, 0, 0),
            "weights": len(updates.weights),
            "results": tuple(plain.results[result] for result in RESULTS),
        }

    def reported(self) -> dict[str, object]:
        status, metrics = self.operator.status(), self.server.metrics()
        load, updates = status.load, status.updates

        def value(name: str, **labels: str) -> float:
            return metrics[f"grace_{name}", frozenset(labels.items())]

        return {
            "served": (status.snapshot.version, value("snapshot_version")),
            "current": load.current_version,
            "pin": (load.pinned_version, load.pinned_until_above, value("pinned")),
            "failed": load.failed_version,
            "fault": load.fault != "",
            "loads": tuple(value("snapshot_load_total", result=each) for each in ("ok", "failed")),
            "sequence": (updates.sequence, value("update_seq")),
            "stopped": dict(updates.stopped),
            "ads_stopped": (updates.ads_stopped, value("stopped_ads")),
            "changes": (
                *(updates.visible, value("update_visible_seq"), updates.ads_put),
                *(value("ads_put"), updates.ads_removed, updates.changes_waiting),
                *(updates.puts_refused, value("puts_unusable")),
            ),
            "weights": updates.weights,
            "results": tuple(value("updates_total", result=each) for each in RESULTS),
        }

    def check_answer(self, seen: Seen) -> None:
        """Require the plain answer of the version that it names, or at least no stopped ad."""
        request, reply = self.requests[seen.request], seen.outcome.response
        (begun, live), (ended, later) = seen.before, seen.after
        if begun == ended and begun % 2 == 0:
            self.assert_plain(request, reply, live)
        elif ended - begun < 4:  # too few steps to resume an ad and stop it again
            stops = Live(live.stopped & later.stopped)
            assert not stops.stopped & {("ad", ad_id) for ad_id in reply.ad_ids}
            if live.changes == later.changes and live.settled and later.settled:
                ads = self.answers.ads(Catalogue.of(self.plain, reply.snapshot_version, live))
                assert not stops.stops(ads[ad_id] for ad_id in reply.ad_ids)

    def assert_plain(self, request: JsonRequest, reply: RetrieveResponse, live: Live) -> None:
        """Require the plain reply, bit for bit but for the times, and the plain rules for it."""
        catalogue = Catalogue.of(self.plain, reply.snapshot_version, live)
        checkpoint = reply.checkpoint
        expected = RetrieveResponse()
        expected.CopyFrom(
            self.answers.reply(catalogue, self.answers.ids.index(checkpoint), live, request)
        )
        expected.snapshot_version = reply.snapshot_version
        reply.ClearField("timings")
        assert reply == expected
        answers, weights = self.answers, dict(live.weights)
        ads = answers.ads(catalogue).values()
        plain_rules(answers.schema, ads, request, reply, live.stops(ads), weights)
