"""Readiness, what a server reports about itself, and its end. test_start_up.py has its start."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from time import time_ns
from typing import Any

import grpc
import pytest

from grace.client import Client
from grace.proto.retrieval_pb2 import ExplainRequest, GetStatusResponse, SetLogLevelRequest
from support.faults import Faults
from support.health import HealthWatch, health, status
from support.operators import operator_of, refused
from support.retrieve_calls import Caller, message
from support.server_process import PATIENCE_SECONDS, ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def test_a_server_is_ready_once_it_is_warm_and_says_so_everywhere(
    serving_files: ServingFiles, faults: Faults
) -> None:
    listen = {"reflection": False, "front_ends": 2}
    config = serving_files.write_config("readiness.yaml", listen=listen)
    request = message(serving_files.requests[0])
    with (
        ServerProcess(config, faults=faults, ready=False) as server,
        Caller(server.address) as caller,
        ExitStack() as stack,
    ):
        with faults.closed("generate"):
            server.wait_until(lambda: bool(faults.batches("generate")), "it warms up")
            watches = [HealthWatch(server), HealthWatch(server, "")]
            for watch in watches:
                stack.enter_context(watch)
            server.wait_until(lambda: all(watch.seen for watch in watches), "health is watched")
            assert status(server).state == GetStatusResponse.STATE_STARTING
            assert not status(server).HasField("snapshot")
            assert server.metric("grace_ready") == 0
            assert caller.call(request).reason == "not_ready"
            with operator_of(server) as operator, refused() as found:
                operator.stub.Explain(ExplainRequest(), timeout=PATIENCE_SECONDS)
            assert found[0].reason == "not_ready"
            client = stack.enter_context(Client(server.address))
            assert not client.is_ready()
        client.wait_ready(PATIENCE_SECONDS)
        assert status(server).state == GetStatusResponse.STATE_SERVING
        assert server.metric("grace_ready") == 1
        assert health(server) == health(server, "") == "SERVING"
        assert caller.call(request).ok
        with Caller(server.address, method=REFLECTION) as reflection:
            assert reflection.call(b"").code is grpc.StatusCode.UNIMPLEMENTED
        server.terminate()
        assert server.wait() == 0
    for watch in watches:
        assert watch.seen[:3] == ["NOT_SERVING", "SERVING", "NOT_SERVING"]
    assert faults.batches("post")[0] == [""]  # an empty request, as none were given


def test_a_signal_while_a_server_warms_up_ends_it_cleanly(
    serving_files: ServingFiles, faults: Faults
) -> None:
    config = serving_files.write_config("warming.yaml")
    with faults.closed("input"), ServerProcess(config, faults=faults, ready=False) as server:
        server.wait_until(lambda: bool(faults.batches("input")), "it warms up")
        server.terminate()
        assert server.wait() == 0
    assert not server.log("ready")


def test_status_names_what_serves(healthy_server: ServerProcess) -> None:
    shown = status(healthy_server)
    assert shown.state == GetStatusResponse.STATE_SERVING
    assert (shown.device, shown.default_profile, shown.max_batch) == ("cpu", "full", 4)
    assert (shown.waiting, shown.max_waiting, shown.front_ends) == (0, 256, 2)
    assert shown.uptime_seconds > 0
    assert shown.server_version[0].isdigit()
    assert (shown.snapshot.version, shown.snapshot.sid_space) == (1, "synth-tiny-1")
    assert shown.snapshot.mode == "exact"
    assert shown.snapshot.ads > shown.snapshot.sids > 0
    assert "country" in shown.snapshot.attributes
    assert list(shown.snapshot.sets) == ["location", "audience"]
    assert list(shown.snapshot.entities) == ["campaign", "advertiser"]
    assert (shown.model.encoder, list(shown.model.vocab_sizes)) == ("interformer", [64] * 4)
    kinds = ("dense", "categorical", "bag", "sequence")
    names = ("hour", "device", "pages", "clicks")
    assert dict(shown.model.inputs) == dict(zip(names, kinds, strict=True))
    profiles = {each.name: (list(each.beams), each.num_sids) for each in shown.profiles}
    assert profiles == {"full": ([1, 16, 16, 16], 16), "reduced": ([1, 4, 4, 4], 4)}
    engine = shown.engine
    assert (engine.precision, engine.graphs, engine.gpu_memory_bytes) == ("fp32", 0, 0)
    (warning,) = healthy_server.log("no_state_dir")
    assert (warning["level"], warning["remedy"]) == ("warning", "set state_dir")
    (ready,) = healthy_server.log("ready")
    assert ready["checkpoint"] == shown.model.checkpoint
    assert (ready["precision"], ready["memo_steps"], ready["graphs"]) == ("fp32", 0, 0)


def test_a_reply_says_its_time_and_a_request_leaves_one_line_in_the_log_with_its_times(
    healthy_server: ServerProcess, serving_files: ServingFiles
) -> None:
    name, begin = "one\nline", time_ns() // 1_000_000
    with Caller(healthy_server.address) as caller:
        reply = caller.call(message(serving_files.requests[0], request_id=name)).response
        assert begin <= reply.at <= time_ns() // 1_000_000
        refused = caller.call(message({"request_id": name, "profile": "nix"}))
    assert refused.reason == "invalid_field"

    def lines() -> list[dict[str, Any]]:
        return [e for e in healthy_server.log("request") if e["request_id"] == name]

    healthy_server.wait_until(lambda: len(lines()) == 2, "both calls are logged")
    answered, failed = lines()
    assert (answered["code"], answered["reason"], answered["batch_size"]) == ("OK", None, 1)
    for stage in ("input", "features", "generate"):
        assert answered[f"{stage}_us"] == getattr(reply.timings, f"{stage}_us")
    parts = [answered[f"{part}_us"] for part in ("queue", "input", "features", "generate", "post")]
    assert sum(parts) <= answered["total_us"]
    assert (failed["code"], failed["field"]) == ("INVALID_ARGUMENT", "profile")
    assert failed["batch_size"] is failed["queue_us"] is failed["post_us"] is None


def test_the_log_level_changes_at_run_time_and_an_unknown_one_is_refused(
    healthy_server: ServerProcess,
) -> None:
    server = healthy_server
    with operator_of(server) as operator, Caller(server.address) as caller:

        def change(level: str) -> object:
            return operator.stub.SetLogLevel(SetLogLevelRequest(level=level), timeout=30).previous

        assert change("error") == "info"
        caller.call(message({"request_id": "unlogged", "profile": "nix"}))
        assert change("info") == "error"
        caller.call(message({"request_id": "logged", "profile": "nix"}))

        def ids() -> set[str]:
            return {line["request_id"] for line in server.log("request")}

        server.wait_until(lambda: "logged" in ids(), "the second has a line")
        assert "unlogged" not in ids()
        changes = [(line["level_before"], line["level_now"]) for line in server.log("log_level")]
        assert changes[-2:] == [("info", "error"), ("error", "info")]
        with refused() as found:
            change("loud")
    assert found[0].code is grpc.StatusCode.INVALID_ARGUMENT
    assert "'loud' is not a level; give one of debug, info" in found[0].text


THREADS = (
    *("grace-loop", "grace-log", "grace-metrics", "grace-feed", "grace-generate", "grace-post"),
    "grace-match",  # one less than threads.post
)


def names_of(pid: int) -> Counter[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return Counter((task / "comm").read_text().strip() for task in tasks)


def test_every_thread_that_matters_has_its_name(healthy_server: ServerProcess) -> None:
    names = names_of(healthy_server.pid)
    assert {name: names[name] for name in THREADS} == dict.fromkeys(THREADS, 1), names
    assert Path(f"/proc/{healthy_server.pid}/comm").read_text().strip() == "grace-loop"
    relay_names = [names_of(relay)["grace-relay"] for relay in healthy_server.children]
    assert relay_names == [1] * status(healthy_server).front_ends
