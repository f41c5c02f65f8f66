"""A causal model on a real server: prompts of both kinds, stops, a swap, loads of both families."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE, UserTensors
from grace.model.checkpoints.init import random_model, write_random
from grace.model.definition.beam_search import beam_search
from grace.model.definition.causal_spec import PromptSpec, SidTokens
from grace.model.definition.inputs import Prompts
from grace.proto import retrieval_pb2 as wire
from grace.server.engine.serving_pair import ServingPair
from support.causal_cases import causal_spec
from support.command import GRACE
from support.fast_serving import scores_of, whole
from support.live_snapshots import LiveRoot
from support.operators import operator_of
from support.plain_inputs import encode_inputs
from support.plain_replies import assert_plain
from support.retrieve_calls import Caller
from support.server_process import ServerProcess
from support.serving_files import ServingFiles
from support.stage_cases import (
    GENERATION,
    JsonRequest,
    answer,
    load_cpu_pair,
    message_of,
    raw_ads,
    replies_of,
    request_batch,
    stop,
)
from support.update_calls import Updater

CPU, AT = torch.device("cpu"), 1_793_500_000_000  # flights begin and end
LISTED = SidTokens(ids=tuple(range(299, 171, -2)))
SPEC = causal_spec(
    sid_space="synth-tiny-1",
    vocab_sizes=(64,) * 4,
    sid_tokens=(SidTokens(first=9), LISTED, SidTokens(first=73), SidTokens(first=137)),
    prompt=PromptSpec((1, 2), history="clicks", suffix=(4,), max_tokens=23),
)
MODEL = random_model(SPEC, seed=3).eval()
WRONG = {"features": {"tokens": {"prompt": {"ids": [7, 300]}}}}
INSTALLED = pytest.mark.skipif(not GRACE.exists(), reason=f"no {GRACE}: install the project")
ON_GPU = pytest.param("cuda:0", marks=[pytest.mark.gpu, INSTALLED])
FAULT = "features.tokens.prompt.ids: 300 is not within 0 to 299"


def requests_of(files: ServingFiles) -> list[dict[str, object]]:
    """Return requests: half with a history, which may be empty, half with a prompt."""
    found, rng = [], np.random.default_rng(7)
    for number, request in enumerate(files.requests[:31]):
        clicks = rng.integers(64, size=4 * int(rng.integers(9))).tolist()
        ids = rng.integers(300, size=rng.integers(1, 24)).tolist()
        history = {"sequences": {"clicks": {"sids": clicks}}}
        features: dict[str, Any] = {"tokens": {"prompt": {"ids": ids}}} if number % 2 else history
        asked = {"user": request["user"], "features": features, "at": AT}
        found.append(whole(asked, f"r{number}", [*GENERATION.profiles][number % 3 // 2]))
    return found


def assert_replies(
    pair: ServingPair,
    files: ServingFiles,
    replies: Sequence[wire.RetrieveResponse],
    stopped: Collection[int],
) -> None:
    """Require the SIDs of the plain search, and the ads that plain rules give for them."""
    stop(pair, stopped)
    every = raw_ads(files.catalogue / "ads.parquet", pair.snapshot.schema)
    catalogue = every[:: pair.snapshot.facts.version]  # version 2 has every other one
    for request, reply in zip(requests_of(files), replies, strict=True):
        message = message_of(request)
        users = UserTensors.of(pair.users.read([message], 1, now=AT).rows, CPU)
        (ids,) = encode_inputs(SPEC, [wire.RetrieveRequest.FromString(message).features]).bags
        prompts, users = Prompts(ids.offsets, ids.values), pair.with_eligible(users)
        profile = GENERATION.profiles[str(request["profile"])]
        found = beam_search(MODEL.decoder, prompts, users, pair.index, profile, REFERENCE)
        live = found.leaves[0] != NO_NODE
        sids = map(tuple, pair.snapshot.trie.sids(found.leaves[0][live].numpy()).tolist())
        scores = dict(zip(sids, found.scores[0][live].tolist(), strict=True))
        assert scores_of(reply) == pytest.approx(scores, rel=1e-4)
        assert_plain(pair.snapshot.schema, catalogue, request, reply, stopped)
        assert reply.snapshot_version == pair.snapshot.facts.version


@pytest.mark.subprocess
@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_a_server_answers_as_the_plain_search_over_stops_swaps_and_loads(
    serving_files: ServingFiles, live: LiveRoot, tmp_path: Path, device: str
) -> None:
    checkpoint = tmp_path / "causal"
    write_random(SPEC, checkpoint, seed=3, dtype=torch.float32)
    first, second = (load_cpu_pair(live.folder(version), checkpoint) for version in (1, 2))
    messages = [message_of(each) for each in requests_of(serving_files)]
    folders = {"checkpoint": str(checkpoint), "state_dir": str(tmp_path / "state")}
    config = live.write_config("causal.yaml", device=device, precision="fp32", **folders)
    with (
        ServerProcess(config) as server,
        Caller(server.address) as caller,
        Updater(server) as updater,
        operator_of(server) as operator,
    ):

        def replies() -> list[wire.RetrieveResponse]:
            calls = [caller.start(each) for each in messages]
            fault = caller.call(message_of(WRONG))
            assert (fault.reason, fault.text) == ("invalid_field", FAULT)
            return [call.outcome().response for call in calls]

        model = operator.status().model
        assert model.encoder == "causal"
        assert dict(model.inputs) == {"prompt": "tokens", "clicks": "sequence"}
        found = replies()
        assert_replies(first, serving_files, found, ())
        stopped = {ad for reply in found for ad in reply.ad_ids[::2]}
        updater.apply(1, stop={"ad": stopped})
        assert_replies(first, serving_files, replies(), stopped)
        live.publish(2)
        server.wait_until(lambda: server.metric("grace_snapshot_version") == 2, "it follows")
        found = replies()
        assert_replies(second, serving_files, found, stopped)
        ad_id, asked = found[1].ad_ids[0], wire.RetrieveRequest.FromString(messages[1])
        explained = operator.stub.Explain(wire.ExplainRequest(ad_id=ad_id, request=asked))
        assert explained.outcome == wire.ExplainResponse.OUTCOME_RETURNED
        assert explained.score == pytest.approx(found[1].scores[0], rel=1e-4)
        for folder, kind in ((serving_files.checkpoint, "interformer"), (checkpoint, "causal")):
            assert operator.load(checkpoint=folder).changed
            assert operator.status().model.encoder == kind
        assert_replies(second, serving_files, replies(), stopped)


def test_a_reply_is_the_same_alone_and_in_a_batch_with_a_faulty_prompt(
    serving_files: ServingFiles, tmp_path: Path
) -> None:
    write_random(SPEC, tmp_path, seed=3, dtype=torch.float32)
    pair = load_cpu_pair(serving_files.snapshots, tmp_path)
    requests: list[JsonRequest] = [*requests_of(serving_files)[:7]]
    together = answer(request_batch(pair, [*requests[:3], WRONG, *requests[3:]], 8))
    assert [failure.error.text for failure in together.input.failures] == [FAULT]
    for request in requests:
        (alone,) = replies_of(answer(request_batch(pair, [request], 8))).items()
        assert alone == (request["request_id"], replies_of(together)[str(request["request_id"])])
