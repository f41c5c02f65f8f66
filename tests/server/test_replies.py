"""Replies that C++ writes: to the byte what the plain writer and protobuf make of the same."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from grace.index.matching.exact import HeldAds, MatchedAds
from grace.index.trie import NO_NODE, SidTrie
from grace.index.users.user_rows import UserEncoder
from grace.proto.retrieval_pb2 import Counts, RetrieveResponse, Timings
from grace.server.engine.serving_pair import ServingPair
from grace.server.stages.replies import Leaves, ReplyHeads, write_replies
from support.plain_replies import GeneratedSids, write_reply
from support.serving_files import ServingFiles
from support.stage_cases import load_cpu_pair

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
def pair(serving_files: ServingFiles) -> ServingPair:
    torch.set_num_threads(1)
    return load_cpu_pair(serving_files.snapshots, serving_files.checkpoint)


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
    with pair.matcher.held(*asked) as ads:
        yield Matched(snapshot.trie, Leaves(leaves, scores), ads)


def heads_of(
    rows: list[int], version: int, checkpoint: str, profile: str, with_sids: list[bool]
) -> ReplyHeads:
    rng = np.random.default_rng(len(rows))
    return ReplyHeads(
        rows=np.array(rows, np.int32),
        request_ids=[REQUEST_IDS[row] for row in rows],
        ignored=[IGNORED[row] for row in rows],
        timings=rng.choice(TIMES, (len(rows), 5)).astype(np.uint32),
        include_sids=with_sids,
        snapshot_version=version,
        checkpoint=checkpoint,
        profile=profile,
    )


def expected_reply(heads: ReplyHeads, place: int, matched: Matched, ads: MatchedAds) -> bytes:
    row = int(heads.rows[place])
    own = slice(*ads.offsets[row : row + 2].tolist())
    queue, given, features, generate, post = heads.timings[place].tolist()
    head = RetrieveResponse(
        request_id=heads.request_ids[place],
        counts=Counts(
            sids_generated=SIZES[row],
            ads_generated=int(ads.counts.generated[row]),
            ads_matched=int(ads.counts.matched[row]),
            ads_returned=own.stop - own.start,
        ),
        snapshot_version=heads.snapshot_version,
        checkpoint=heads.checkpoint,
        ignored_names=heads.ignored[place],
        truncated=bool(ads.counts.truncated[row]),
        profile=heads.profile,
        timings=Timings(
            queue_us=queue, input_us=given, features_us=features, generate_us=generate, post_us=post
        ),
    )
    sids = None
    if heads.include_sids[place]:
        leaves, scores = matched.leaves.leaves[row], matched.leaves.scores[row]
        live = leaves != NO_NODE
        place_of_leaf = np.cumsum(live, dtype=np.int32) - 1
        tokens = matched.trie.sids(leaves[live])
        sids = GeneratedSids(tokens, scores[live], place_of_leaf[ads.leaf_positions[own]])
    return write_reply(head, ads.ad_ids[own], ads.scores[own], sids)


@pytest.mark.parametrize(
    ("version", "checkpoint", "profile"),
    [(1, "0123456789abcdef", "full"), (2**64 - 1, "", ""), (0, "c", "reduced" * 40)],
)
@pytest.mark.parametrize("rows", [list(range(7)), [6, 0, 3], [4]], ids=str)
@pytest.mark.parametrize("sids", ["none", "some", "all"])
def test_the_bytes_are_those_that_the_plain_writer_writes(
    matched: Matched, rows: list[int], version: int, checkpoint: str, profile: str, sids: str
) -> None:
    ads = matched.ads.taken()
    assert 0 in ads.offsets[1:] - ads.offsets[:-1]
    assert ads.counts.truncated.any()
    with_sids = [sids == "all" or (sids == "some" and row % 3 == 0) for row in rows]
    heads = heads_of(rows, version, checkpoint, profile, with_sids)
    written = write_replies(matched.ads, heads, matched.leaves, matched.trie)
    assert matched.ads.leaves.tolist() == list(SIZES)
    assert written == [expected_reply(heads, place, matched, ads) for place in range(len(rows))]


def test_no_row_is_no_reply(matched: Matched) -> None:
    heads = heads_of([], 1, "c", "full", [])
    assert write_replies(matched.ads, heads, matched.leaves, matched.trie) == []


@pytest.mark.parametrize(
    ("ads", "sids", "length"),
    [(0, None, 4), (15, None, 4), (2048, None, 4), (0, 0, 4), (1, 1, 1), (10_000, 1024, 4)],
    ids=str,
)
def test_the_plain_writer_writes_what_the_generated_setters_write(
    ads: int, sids: int | None, length: int
) -> None:
    rng = np.random.default_rng(ads)
    head = RetrieveResponse(
        request_id="é-1",
        counts=Counts(sids_generated=3, ads_generated=2**32 - 1),
        snapshot_version=2**64 - 1,
        truncated=True,
    )
    expected = RetrieveResponse()
    expected.CopyFrom(head)
    ad_ids = rng.integers(-(2**63), 2**63 - 1, ads, dtype=np.int64)
    scores = rng.standard_normal(ads, dtype=np.float32)
    expected.ad_ids.extend(ad_ids.tolist())
    expected.scores.extend(scores.tolist())
    generated = None
    if sids is not None:
        generated = GeneratedSids(
            rng.integers(2**16, size=(sids, length), dtype=np.uint16),
            rng.standard_normal(sids, dtype=np.float32),
            rng.integers(max(sids, 1), size=ads, dtype=np.int32),
        )
        expected.sids.length = length
        expected.sids.tokens.extend(generated.tokens.flatten().tolist())
        expected.sids.scores.extend(generated.scores.tolist())
        expected.sids.sid_of_ad.extend(generated.sid_of_ad.tolist())
    written = write_reply(head, ad_ids, scores, generated)
    assert RetrieveResponse.FromString(written) == expected
    assert len(written) == expected.ByteSize()
