"""Replies that C++ writes: to the byte what protobuf and `write_reply` make of the same."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from grace.index.matching.exact import HeldAds, MatchedAds
from grace.index.users.user_rows import UserEncoder
from grace.proto.retrieval_pb2 import Counts, RetrieveResponse, Timings
from grace.server.engine.serving_pair import ServingPair
from grace.server.stages.native_replies import ReplyHeads, write_replies
from grace.server.stages.replies import write_reply
from support.serving_files import ServingFiles
from support.stage_cases import load_cpu_pair

SIZES = (300, 9, 40, 1, 0, 200, 77)
MAX_ADS = (1000, 0, 1, 3, 1000, 7, 1000)
REQUEST_IDS = ("", "r1", "é-1", "x" * 128, "5", "中" * 43, "7")
IGNORED = ((), ("mood",), (), ("a", "größe"), (), ("x" * 300,), ("", "b"))
TIMES = (0, 1, 127, 128, 2**32 - 1)


@pytest.fixture(scope="module")
def pair(serving_files: ServingFiles) -> ServingPair:
    torch.set_num_threads(1)
    return load_cpu_pair(serving_files.snapshots, serving_files.checkpoint)


@pytest.fixture
def held(pair: ServingPair) -> Iterator[HeldAds]:
    """Of users who fit everything, on many leaves, a few, and none."""
    snapshot, rng = pair.snapshot, np.random.default_rng(5)
    leaves = [rng.permutation(snapshot.trie.num_leaves)[:size] for size in SIZES]
    scores = -rng.exponential(size=sum(SIZES)).astype(np.float32)
    users = UserEncoder(snapshot.schema, snapshot.set_values).encode([{}] * len(SIZES))
    offsets = np.cumsum([0, *SIZES])
    with pair.matcher.held(
        users, offsets, np.concatenate(leaves).astype(np.int32), scores, MAX_ADS
    ) as ads:
        yield ads


def heads_of(rows: list[int], version: int, checkpoint: str, profile: str) -> ReplyHeads:
    rng = np.random.default_rng(len(rows))
    return ReplyHeads(
        rows=np.array(rows, np.int32),
        request_ids=[REQUEST_IDS[row] for row in rows],
        ignored=[IGNORED[row] for row in rows],
        timings=rng.choice(TIMES, (len(rows), 5)).astype(np.uint32),
        snapshot_version=version,
        checkpoint=checkpoint,
        profile=profile,
    )


def expected_reply(heads: ReplyHeads, place: int, matched: MatchedAds, leaves: np.ndarray) -> bytes:
    row = int(heads.rows[place])
    own = slice(*matched.offsets[row : row + 2].tolist())
    queue, given, features, generate, post = heads.timings[place].tolist()
    head = RetrieveResponse(
        request_id=heads.request_ids[place],
        counts=Counts(
            sids_generated=int(leaves[row]),
            ads_generated=int(matched.counts.generated[row]),
            ads_matched=int(matched.counts.matched[row]),
            ads_returned=own.stop - own.start,
        ),
        snapshot_version=heads.snapshot_version,
        checkpoint=heads.checkpoint,
        ignored_names=heads.ignored[place],
        truncated=bool(matched.counts.truncated[row]),
        profile=heads.profile,
        timings=Timings(
            queue_us=queue, input_us=given, features_us=features, generate_us=generate, post_us=post
        ),
    )
    return write_reply(head, matched.ad_ids[own], matched.scores[own])


@pytest.mark.parametrize(
    ("version", "checkpoint", "profile"),
    [(1, "0123456789abcdef", "full"), (2**64 - 1, "", ""), (0, "c", "reduced" * 40)],
)
@pytest.mark.parametrize("rows", [list(range(7)), [6, 0, 3], [4]], ids=str)
def test_the_bytes_are_those_that_the_plain_way_writes(
    held: HeldAds, rows: list[int], version: int, checkpoint: str, profile: str
) -> None:
    matched = held.taken()
    assert 0 in matched.offsets[1:] - matched.offsets[:-1]
    assert matched.counts.truncated.any()
    heads = heads_of(rows, version, checkpoint, profile)
    written = write_replies(held, heads)
    assert held.leaves.tolist() == list(SIZES)
    assert written == [
        expected_reply(heads, place, matched, held.leaves) for place in range(len(rows))
    ]


def test_no_row_is_no_reply(held: HeldAds) -> None:
    assert write_replies(held, heads_of([], 1, "c", "full")) == []
