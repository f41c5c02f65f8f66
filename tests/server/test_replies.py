"""Reply bytes written from arrays, read back through the generated class, field by field."""

import numpy as np
import pytest

from grace.proto.retrieval_pb2 import Counts, RetrieveResponse, Timings
from grace.server.stages.replies import GeneratedSids, write_reply


def head() -> RetrieveResponse:
    return RetrieveResponse(
        request_id="é-1",
        counts=Counts(sids_generated=3, ads_generated=2**32 - 1, ads_matched=9, ads_returned=7),
        snapshot_version=2**64 - 1,
        checkpoint="0123456789abcdef",
        timings=Timings(queue_us=1, input_us=2, features_us=3, generate_us=4, post_us=5),
        ignored_names=["bags.x", "y"],
        truncated=True,
        profile="full",
    )


def arrays(ads: int, sids: int, length: int, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return (
        rng.integers(-(2**63), 2**63 - 1, ads, dtype=np.int64),
        rng.standard_normal(ads, dtype=np.float32),
        rng.integers(2**16, size=(sids, length), dtype=np.uint16),
        rng.standard_normal(sids, dtype=np.float32),
        rng.integers(max(sids, 1), size=ads, dtype=np.int32),
    )


@pytest.mark.parametrize("ads", [0, 1, 15, 16, 2047, 2048, 10_000], ids=lambda n: f"ads={n}")
def test_the_bytes_are_those_of_a_reply_made_through_the_setters(ads: int) -> None:
    ad_ids, scores, *_ = arrays(ads, 0, 4, ads)
    expected = head()
    expected.ad_ids.extend(ad_ids.tolist())
    expected.scores.extend(scores.tolist())
    written = write_reply(head(), ad_ids, scores)
    assert RetrieveResponse.FromString(written) == expected
    assert len(written) == expected.ByteSize()


@pytest.mark.parametrize(
    ("ads", "sids", "length"),
    [(0, 0, 4), (0, 1, 4), (1, 1, 1), (63, 111, 3), (10_000, 1024, 4)],
    ids=str,
)
def test_sids_are_written_where_they_are_asked_for(ads: int, sids: int, length: int) -> None:
    ad_ids, scores, tokens, sid_scores, sid_of_ad = arrays(ads, sids, length, sids)
    expected = head()
    expected.ad_ids.extend(ad_ids.tolist())
    expected.scores.extend(scores.tolist())
    expected.sids.length = length
    expected.sids.tokens.extend(tokens.flatten().tolist())
    expected.sids.scores.extend(sid_scores.tolist())
    expected.sids.sid_of_ad.extend(sid_of_ad.tolist())
    generated = GeneratedSids(tokens, sid_scores, sid_of_ad)
    written = write_reply(head(), ad_ids, scores, generated)
    assert RetrieveResponse.FromString(written) == expected
    assert len(written) == expected.ByteSize()


def test_arrays_of_any_byte_order_and_layout_are_written_alike() -> None:
    ad_ids, scores, tokens, sid_scores, sid_of_ad = arrays(63, 7, 4, 3)
    plain = write_reply(head(), ad_ids, scores, GeneratedSids(tokens, sid_scores, sid_of_ad))
    twice = np.repeat(ad_ids, 2)[::2]
    swapped = [x.astype(x.dtype.newbyteorder(">")) for x in (twice, scores, tokens.T, sid_scores)]
    assert plain == write_reply(
        head(),
        swapped[0],
        swapped[1],
        GeneratedSids(swapped[2].T, swapped[3], sid_of_ad.astype(">i4")),
    )


def test_an_empty_reply_says_no_more_than_its_head() -> None:
    none = np.empty(0, np.int64)
    assert write_reply(head(), none, none.astype(np.float32)) == head().SerializeToString()
