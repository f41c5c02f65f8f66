"""The replies that C++ writes have the bytes that protobuf writes for the same values."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from grace.index.matching.exact import HeldAds, MatchedAds
from grace.index.trie import NO_NODE, SidTrie
from grace.index.users.user_rows import UserEncoder
from grace.proto.retrieval_pb2 import RetrieveResponse, Timings
from grace.server.engine.serving_pair import ServingPair
from grace.server.stages.replies import Leaves, ReplyHeads, write_replies

SIZES = (300, 9, 40, 1, 0, 200, 77)
MAX_ADS = (1000, 0, 1, 3, 1000, 7, 1000)
REQUEST_IDS = ("", "r1", "é-1", "x" * 128, "5", "中" * 43, "7")
IGNORED = ((), ("mood",), (), ("a", "größe"), (), ("x" * 300,), ("", "b"))
TIMES = (0, 1, 127, 128, 2**32 - 1)


@dataclass(frozen=True)
class Matched:
    trie: SidTrie
    leaves: Leaves
    ads: HeldAds


@pytest.fixture(scope="module")
def matched(pair: ServingPair) -> Iterator[Matched]:
    """Users who fit everything, on many leaves, a few, and none; dead leaves are anywhere."""
    snapshot, rng = pair.snapshot, np.random.default_rng(5)
    leaves = np.full((len(SIZES), max(SIZES) + 9), NO_NODE, np.int32)
    for row, size in zip(leaves, SIZES, strict=True):
        places = np.sort(rng.permutation(len(row))[:size])
        row[places] = rng.permutation(snapshot.trie.num_leaves)[:size]
    scores = -rng.exponential(size=leaves.shape).astype(np.float32)
    users = UserEncoder(snapshot.schema, snapshot.set_values).encode([{}] * len(SIZES))
    offsets = np.arange(len(SIZES) + 1) * leaves.shape[1]
    asked = (users, offsets, leaves.reshape(-1), scores.reshape(-1), MAX_ADS)
    entities: list[dict[str, int]] = [
        {"advertiser": 1} if row % 2 else {} for row in range(len(SIZES))
    ]
    brands = snapshot.entities[1].ids
    exclude = [{"advertiser": brands[:: 3 + row]} for row in range(len(SIZES))]
    with pair.matcher.held(*asked, exclude=exclude, at_most=entities) as ads:
        yield Matched(snapshot.trie, Leaves(leaves, scores), ads)


def heads_of(
    rows: list[int],
    version: int,
    checkpoint: str,
    profile: str,
    with_sids: list[bool],
    labels: tuple[str, ...],
) -> ReplyHeads:
    rng = np.random.default_rng(len(rows))
    return ReplyHeads(
        rows=np.array(rows, np.int32),
        request_ids=[REQUEST_IDS[row] for row in rows],
        ignored=[IGNORED[row] for row in rows],
        timings=rng.choice(TIMES, (len(rows), 5)).astype(np.uint32),
        include_sids=with_sids,
        degraded=[row % 2 == 1 for row in rows],
        snapshot_version=version,
        checkpoint=checkpoint,
        profile=profile,
        times=[2**62 + row for row in rows] if version else None,
        labels=labels,
    )


def expected_reply(
    found: RetrieveResponse, heads: ReplyHeads, place: int, ads: MatchedAds
) -> RetrieveResponse:
    """Return the reply with what heads and ads say; test_stages.py has its counts and SIDs."""
    row = int(heads.rows[place])
    own = slice(*ads.offsets[row : row + 2].tolist())
    queue, given, features, generate, post = heads.timings[place].tolist()
    reply = RetrieveResponse(
        request_id=heads.request_ids[place],
        ad_ids=ads.ad_ids[own].tolist(),
        scores=ads.scores[own].tolist(),
        counts=found.counts,
        sids=found.sids if heads.include_sids[place] else None,
        truncated=found.truncated,
        at=0 if heads.times is None else heads.times[place],
        snapshot_version=heads.snapshot_version,
        checkpoint=heads.checkpoint,
        ignored_names=heads.ignored[place],
        degraded=heads.degraded[place],
        profile=heads.profile,
        timings=Timings(
            queue_us=queue, input_us=given, features_us=features, generate_us=generate, post_us=post
        ),
    )
    failed = zip(heads.labels, ads.counts.failed[row].tolist(), strict=True)
    assert reply.counts.ads_failed == {label: count for label, count in failed if count}
    return reply


@pytest.mark.parametrize(
    ("version", "checkpoint", "profile"),
    [(1, "0123456789abcdef", "full"), (2**64 - 1, "", ""), (0, "c", "reduced" * 40)],
)
@pytest.mark.parametrize("rows", [list(range(7)), [6, 0, 3], [4]], ids=str)
@pytest.mark.parametrize("sids", ["none", "some", "all"])
def test_the_bytes_are_those_that_protobuf_writes(
    matched: Matched, rows: list[int], version: int, checkpoint: str, profile: str, sids: str
) -> None:
    ads = matched.ads.taken()
    assert 0 in ads.offsets[1:] - ads.offsets[:-1]
    assert (ads.counts.returned + ads.counts.limited < ads.counts.matched).any()
    assert ads.counts.excluded.any()
    assert ads.counts.limited.any()
    with_sids = [sids == "all" or (sids == "some" and row % 3 == 0) for row in rows]
    labels = tuple(f"größe {c}" * (1 + 40 * c) for c in range(ads.counts.failed.shape[1]))
    heads = heads_of(rows, version, checkpoint, profile, with_sids, labels)
    written = write_replies(matched.ads, heads, matched.leaves, matched.trie)
    assert matched.ads.counts.sids.tolist() == list(SIZES)
    for place, reply in enumerate(written):
        found = RetrieveResponse.FromString(reply)
        expected = expected_reply(found, heads, place, ads)
        assert found == expected
        assert len(reply) == expected.ByteSize()
