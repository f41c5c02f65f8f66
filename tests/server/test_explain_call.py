"""Explain as operators call it: over gRPC and with `grace explain`, on a server with faults."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from grace.proto import retrieval_pb2 as wire
from grace.server.transport.explain_call import MOST_EXPLANATIONS
from support.in_process import invoke_grace, printed
from support.operators import operator_of
from support.retrieve_calls import Call, Caller, counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

Outcome = wire.ExplainResponse.Outcome
METHOD = "/grace.v1.Admin/Explain"


class Explainer(Caller):
    def ask(self, ad_id: int, request: bytes, seconds: float | None = None) -> Call:
        asked = wire.ExplainRequest(ad_id=ad_id).SerializeToString()
        # The request as it is, also if it is wrong: field 2, with the size of its bytes.
        size = bytes((len(request) & 127 | 128, len(request) >> 7 & 127 | 128, len(request) >> 14))
        return self.start(asked + b"\x12" + size + request, seconds)

    def explain(self, ad_id: int, request: bytes) -> wire.ExplainResponse:
        outcome = self.ask(ad_id, request).outcome()
        assert outcome.ok, outcome
        return wire.ExplainResponse.FromString(outcome.reply)


@pytest.fixture
def explainer(operated: ServerProcess) -> Iterator[Explainer]:
    with Explainer(operated.admin, method=METHOD) as explainer:
        yield explainer


def returned(server: ServerProcess, request: bytes) -> wire.RetrieveResponse:
    with Caller(server.address) as caller:
        return caller.call(request).response


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x08\x01",
        b"\x0a\x01\xff",
        message({"profile": "huge"}),
        message({"sid_space": "another"}),
        message({"features": {"dense": {"hour": {"values": [1, 2]}}}}),
    ],
    ids=["type", "UTF-8", "profile", "space", "features"],
)
def test_a_wrong_request_has_the_error_that_retrieve_gives_it(
    operated: ServerProcess, explainer: Explainer, wrong: bytes
) -> None:
    with Caller(operated.address) as caller:
        expected = caller.call(wrong)
    assert explainer.ask(1, wrong).outcome() == expected


def test_explanations_are_neither_counted_as_requests_nor_logged(
    operated: ServerProcess, explainer: Explainer, serving_files: ServingFiles
) -> None:
    request = serving_files.requests[1]
    with counted_calls(operated) as caller:
        explainer.explain(7, message(request, request_id="explained"))
        assert caller.call(message(request, request_id="retrieved")).ok

    def logged() -> set[str]:
        return {line["request_id"] for line in operated.log("request")}

    operated.wait_until(lambda: "retrieved" in logged(), "the call is logged")
    assert "explained" not in logged()


def test_few_explanations_may_wait_and_operators_do_not_wait_for_them(
    operated: ServerProcess, explainer: Explainer, serving_files: ServingFiles
) -> None:
    request = message(serving_files.requests[0], request_id="many")
    ad_id = returned(operated, message(serving_files.requests[0])).ad_ids[0]
    faults = operated.faults
    with faults.closed("features"):
        calls = [explainer.ask(ad_id, request) for _ in range(MOST_EXPLANATIONS)]
        operated.wait_until(
            lambda: "many" in operated.faults.reached("features"), "one is under way"
        )
        found = explainer.ask(ad_id, request).outcome()
        with operator_of(operated) as operator:
            assert operator.status().waiting == operator.status().in_flight == 0
    assert found.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert found.reason == "too_many_explanations"
    assert len({call.outcome().reply for call in calls}) == 1
    assert faults.batches("features").count(["many"]) == MOST_EXPLANATIONS


def test_an_explanation_that_no_caller_waits_for_is_not_begun(
    operated: ServerProcess, explainer: Explainer, serving_files: ServingFiles
) -> None:
    user = serving_files.requests[0]
    some_ad = returned(operated, message(user)).ad_ids[0]
    last_message = message(user, request_id="last")
    faults = operated.faults
    with faults.closed("features"):
        first = explainer.ask(some_ad, message(user, request_id="first"))
        operated.wait_until(lambda: "first" in faults.reached("features"), "it is under way")
        late = explainer.ask(some_ad, message(user, request_id="late"), 0.3)
        gone = explainer.ask(some_ad, message(user, request_id="gone"))
        assert late.outcome().code is grpc.StatusCode.DEADLINE_EXCEEDED
        gone.cancel()
        last = [explainer.ask(some_ad, last_message) for _ in range(MOST_EXPLANATIONS)]  # too many
        # The refusals come after what the server does about the calls before them.
        for _ in range(5):
            found = explainer.ask(some_ad, last_message).outcome()
            assert found.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            time.sleep(0.1)
    assert first.outcome().ok
    assert last[0].outcome().ok
    assert "last" in faults.reached("input")
    assert not {"late", "gone"} & faults.reached("input")


def test_a_failure_is_logged_and_harms_no_other_call(
    operated: ServerProcess, explainer: Explainer, serving_files: ServingFiles
) -> None:
    request = message(serving_files.requests[0])
    ad_id = returned(operated, request).ad_ids[0]
    failures = len(operated.log("call_failed"))
    with operated.faults.raises("features", "a secret"):
        failed = explainer.ask(ad_id, request).outcome()
    assert (failed.code, failed.reason) == (grpc.StatusCode.INTERNAL, "internal")
    assert "secret" not in failed.text
    assert len(operated.wait_log("call_failed", failures + 1)) == failures + 1
    assert explainer.explain(ad_id, request).outcome == Outcome.OUTCOME_RETURNED


@pytest.fixture(scope="module")
def request_file(serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("explain") / "request.json"
    file.write_text(json.dumps(serving_files.requests[2]), encoding="utf-8")
    return file


def test_the_command_prints_the_outcome_and_every_step(
    operated: ServerProcess, serving_files: ServingFiles, request_file: Path
) -> None:
    reply = returned(operated, message(serving_files.requests[2], max_ads=3))
    asked = ("explain", "--ad", str(reply.ad_ids[1]), "--address", operated.admin)
    shown = printed(*asked, "--request", request_file)
    first, sid, *_ = shown.splitlines()
    number = r"number 2 of \d+ ads, with score -\d+\.\d+"
    assert re.fullmatch(rf"ad {reply.ad_ids[1]}: it is returned: {number}", first)
    tokens = re.fullmatch(r"SID (\d+) (\d+) (\d+) (\d+)", sid)
    assert tokens is not None
    rows = re.findall(r"^ +([1-4]) +(\d+) +-\d+\.\d+ .* yes +$", shown, re.MULTILINE)
    assert rows == [(str(step), token) for step, token in enumerate(tokens.groups(), start=1)]
    assert re.search(r"^snapshot 1, checkpoint \w+, profile full$", shown, re.MULTILINE)


def test_the_command_explains_what_retrieve_asks_with_the_same_options(
    operated: ServerProcess, serving_files: ServingFiles, request_file: Path
) -> None:
    country = serving_files.requests[2]["user"]["country"]["values"][0]
    options: tuple[str | Path, ...] = ("--request", request_file)
    options += ("--user", f"country={country}", "--profile", "reduced", "--max-ads", "3")
    done = invoke_grace("retrieve", "--address", operated.address, *options, "--json")
    *_, last = json.loads(done.stdout)["ad_ids"]
    asked = ("explain", "--ad", last, "--address", operated.admin, "--json")
    explained = json.loads(invoke_grace(*asked, *options).stdout)
    assert (explained["outcome"], explained["rank"]) == ("OUTCOME_RETURNED", 3)
    assert explained["profile"] == "reduced"
    explained = json.loads(invoke_grace(*asked, *options, "--max-ads", "2").stdout)
    assert explained["outcome"] == "OUTCOME_MAX_ADS"
    explained = json.loads(invoke_grace(*asked, *options, "--user", "country=nowhere").stdout)
    assert {"nowhere"} in [{*rule["user"]} for rule in explained["rules"]] or explained["steps"]
    explained = json.loads(invoke_grace(*asked, *options, "--at-most", "advertiser=0").stdout)
    assert explained["outcome"] == "OUTCOME_AT_MOST"
