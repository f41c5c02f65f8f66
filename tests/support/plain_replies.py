"""What a reply must say of the SIDs that were generated for it, by plain rules for their ads."""

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType

from grace.index.targeting.schema import TargetingSchema
from grace.proto.retrieval_pb2 import Counts, RetrieveResponse
from support.oracle import (
    Asked,
    RawAd,
    RawFilter,
    RawUser,
    eligible,
    first_failure,
    is_excluded,
    label_of,
    within_limits,
)
from support.stage_cases import GENERATION, JsonRequest


def user_of(request: JsonRequest, now: int) -> RawUser:
    """The user of a request, which counts at `now` unless it says another time."""
    user = RawUser(
        (name, given["number"] if "number" in given else given.get("values", []))
        for name, given in request.get("user", {}).items()
    )
    filters = {
        name: RawFilter(
            frozenset(given.get("any_of", ())),
            frozenset(given.get("none_of", ())),
            {"PASSES": True, "BLOCKED": False}.get(given.get("unknown", "")),
        )
        for name, given in request.get("filters", {}).items()
    }
    at = int(request.get("at", 0)) or now
    user.asked = Asked(at, request.get("utc_offset_minutes", 0), filters)
    return user


def assert_plain(
    schema: TargetingSchema,
    catalogue: Collection[RawAd],
    request: JsonRequest,
    reply: RetrieveResponse,
    stopped: Collection[int] = (),
    weights: Mapping[int, float] = MappingProxyType({}),
    exact: bool = True,
) -> Counts:
    """Compare a reply with the plain rules for its SIDs, and return its counts.

    exact  the search admits a SID only if one of its ads may be returned
    """
    user = user_of(request, reply.at)
    denied = set(map(int, request.get("exclude_ads", ())))
    exclude = {name: set(given["ids"]) for name, given in request.get("exclude", {}).items()}
    at_most, known_names = request.get("at_most", {}), {*schema.names, *schema.entities}
    length = reply.sids.length
    tokens = [tuple(reply.sids.tokens[i * length : (i + 1) * length]) for i in range(99)]
    score_of = dict(zip(tokens, reply.sids.scores, strict=False))
    generated = [ad for ad in catalogue if ad.sid in score_of]
    failures = [first_failure(schema, ad, user) for ad in generated]
    passed = [ad for ad, name in zip(generated, failures, strict=True) if name is None]
    live = [ad for ad in passed if ad.ad_id not in stopped]
    left = [ad for ad in live if ad.ad_id not in denied and not is_excluded(ad, exclude)]
    ranked = sorted(
        left, key=lambda ad: (-score_of[ad.sid], -weights.get(ad.ad_id, ad.weight), ad.ad_id)
    )
    known = {name: most for name, most in at_most.items() if name in schema.entities}
    chosen = within_limits(ranked, known, request["max_ads"])
    expected = [ranked[place] for place in chosen.places]
    assert list(reply.ad_ids) == [ad.ad_id for ad in expected]
    assert list(reply.scores) == [score_of[ad.sid] for ad in expected]
    assert [tokens[i] for i in reply.sids.sid_of_ad] == [ad.sid for ad in expected]
    assert list(reply.sids.scores) == sorted(reply.sids.scores, reverse=True)
    assert reply.truncated == chosen.truncated
    assert list(reply.ignored_names) == sorted({*user, *exclude, *at_most} - known_names)
    assert reply.counts == Counts(
        sids_generated=len(reply.sids.scores),
        ads_generated=len(generated),
        ads_matched=len(left),
        ads_returned=len(expected),
        ads_stopped=len(passed) - len(live),
        ads_excluded=len(live) - len(left),
        ads_limited=chosen.left_out,
        ads_failed=Counter(label_of(schema, name) for name in failures if name is not None),
    )
    # Every SID has an eligible live ad, and only a want of those leaves a beam empty.
    useful = {ad.sid for ad in catalogue if ad.ad_id not in stopped and eligible(schema, ad, user)}
    if exact:
        num_sids = GENERATION.profiles[reply.profile].num_sids
        assert set(score_of) <= useful
        assert len(score_of) == min(num_sids, len(useful))
    return reply.counts


def ads_of_a_sid(reply: RetrieveResponse) -> list[int]:
    """Return ads of the SID that has the most in a reply: their weights decide on their order."""
    scores = list(reply.scores)
    score = max(scores, key=scores.count)
    return [ad for ad, of in zip(reply.ad_ids, scores, strict=True) if of == score][:5]
