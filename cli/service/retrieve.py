"""`grace retrieve`: send one request to a running server and print the reply."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table

from grace.cli.options import DAY, Connection
from grace.cli.reports import plain_table, table_console
from grace.cli.service.request_file import GivenRequest
from grace.configs.errors import InputError
from grace.configs.options import Option

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from grace.index.ads_table import KnownAd
    from grace.proto.retrieval_pb2 import RetrieveResponse

DEFAULT_MAX_ADS = 10
STAGES = ("queue", "input", "features", "generate", "post")


def retrieve(
    given: GivenRequest,
    server: Connection,
    data: Annotated[
        Path | None,
        Option("Data folder of the ads: show titles, and why each ad is eligible.", "FOLDER"),
    ] = None,
    ads: Annotated[
        tuple[str, ...],
        Option("With --data, a table of ads that were put since the build; repeatable.", "TABLE"),
    ] = (),
    sids: Annotated[bool, "Show each ad's SID."] = False,
    wait: Annotated[
        float, Option("Seconds to wait until the server is ready.", least=0, most=DAY)
    ] = 0.0,
) -> None:
    """Retrieve ads for a user from a running server: ads and stage times.

    `p(SID)`, which is exp(score), is the probability that the model gives to the ad's SID.

    Without `max_ads`, or with 0, the command asks for 10 ads.

    Example: `grace retrieve --request demo/requests.jsonl --user country=US --sids`
    """
    # gRPC reads this when it is loaded. Our errors say more than its lines.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from grace.client import Client
    from grace.index.ads_table import AdsTable

    if ads and data is None:
        raise InputError(f"--ads {ads[0]}: give --data FOLDER, which says what its columns mean")
    table = None if data is None else AdsTable(data, ads)
    message = given.message(table.ids if table else None)
    message.max_ads = message.max_ads or DEFAULT_MAX_ADS
    message.include_sids |= sids
    # One attempt: the command shows what the server answers, refusals included.
    with Client(server.address, server.tls(), retry=False) as client:
        if wait:
            client.wait_ready(wait)
        started = time.perf_counter()
        reply = client.retrieve(message, timeout=server.timeout).message
        total_ms = (time.perf_counter() - started) * 1e3
    message.at = reply.at or message.at or int(time.time() * 1e3)
    known = None if table is None else table.known(reply.ad_ids, message)
    if server.as_json:
        shown = reply_json(reply) | {"total_ms": round(total_ms, 3)}
        shown |= {} if known is None else {"ads": [*_ads_json(known)]}
        print(json.dumps(shown, indent=2))
    else:
        _print(reply, total_ms, known)
        if table is not None and (unlisted := ", ".join(table.unlisted(message))):
            print(f"targeting.yaml does not list these values, so no ad includes them: {unlisted}")
        if table is not None and (unused := ", ".join(table.unused(message))):
            print(f"no ad of the tables has these filter values: {unused}")


def reply_json(reply: "Message") -> dict[str, Any]:
    """Return protobuf's JSON form, with the names of the .proto file, zeros included."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def stage_times(reply: "RetrieveResponse") -> str:
    """Format the reply's stage times, in milliseconds."""
    times = ((stage, getattr(reply.timings, f"{stage}_us") / 1e3) for stage in STAGES)
    return ", ".join(f"{stage} {ms:.1f}" for stage, ms in times) + " ms"


def _ads_json(known: "Mapping[int, KnownAd]") -> Iterator[dict[str, Any]]:
    for ad_id, ad in known.items():  # in the order of the reply
        facts = {"ad_id": str(ad_id), "item_id": ad.item_id, "title": ad.title or None}
        yield {**facts, "why": [*map(str, ad.reasons)]}


def _print(
    reply: "RetrieveResponse", total_ms: float, known: "Mapping[int, KnownAd] | None"
) -> None:
    if known is not None:
        for text in known_ads(reply, known):
            print(text)
    elif reply.ad_ids:
        table_console().print(_table(reply))
    counts = reply.counts
    cut = ", cut by max_ads" if reply.truncated else ""
    ads = [f"{counts.ads_generated:,} ads"]
    ads += [f"{counts.ads_stopped:,} stopped"] if counts.ads_stopped else []
    ads += [f"{counts.ads_excluded:,} excluded"] if counts.ads_excluded else []
    ads += [f"{counts.ads_matched:,} for this user"]
    ads += [f"{counts.ads_limited:,} left out by at_most"] if counts.ads_limited else []
    lines = [
        f"{counts.sids_generated:,} SIDs generated with profile {reply.profile}",
        f"{', '.join(ads)}, {counts.ads_returned:,} returned{cut}",
        f"snapshot {reply.snapshot_version}, checkpoint {reply.checkpoint}",
        f"{total_ms:.1f} ms; of it on the server: {stage_times(reply)}",
    ]
    if reply.ignored_names:
        lines.append(f"not used by this catalogue and model: {', '.join(reply.ignored_names)}")
    print("\n".join(lines))


def known_ads(reply: "RetrieveResponse", known: "Mapping[int, KnownAd]") -> Iterator[str]:
    """Yield two lines for each ad: the ad with some facts, and why the user may see it."""
    for place, (ad_id, score) in enumerate(zip(reply.ad_ids, reply.scores, strict=True)):
        facts = f"p(SID) = {math.exp(score):.3g}"
        facts += f", SID {_sid(reply, place)}" if reply.sids.sid_of_ad else ""
        ad = known[ad_id]
        title = ad.title or ("no title" if ad.listed else "no usable row in the ads tables")
        yield f"    {place + 1}. {title} (ad {ad.item_id or f'number {ad_id}'}, {facts})"
        if not all(reason.passes for reason in ad.reasons):
            yield (
                "       the tables' rules exclude this user, so the server has other rules for "
                "this ad: name its newest table with --ads"
            )
        elif ad.listed:
            yield f"       {'; '.join(map(str, ad.reasons)) or 'no rule: it is for everyone'}"


def _table(reply: "RetrieveResponse") -> Table:
    with_sids = len(reply.sids.sid_of_ad) > 0
    table = plain_table("", "ad", "score", "p(SID)", *(("SID",) if with_sids else ()))
    for place, (ad_id, score) in enumerate(zip(reply.ad_ids, reply.scores, strict=True)):
        row = [str(ad_id), f"{score:.3f}", f"{math.exp(score):.3g}"]
        table.add_row(*row, *([_sid(reply, place)] if with_sids else []))
    return table


def _sid(reply: "RetrieveResponse", place: int) -> str:
    length = reply.sids.length
    first = reply.sids.sid_of_ad[place] * length
    return " ".join(map(str, reply.sids.tokens[first : first + length]))
