"""`grace retrieve`: send one request to a running server and print the reply."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.ads_table import KnownAd, ad_lines, known_ads, shown_table
from grace.cli.options import (
    AsJson,
    RequestFile,
    RequestLine,
    TlsCa,
    TlsCertificate,
    TlsKey,
    TokenFile,
    ids_by_name,
    integer,
    split,
)
from grace.cli.request_file import request_message
from grace.configs.errors import InputError

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.table import Table

    from grace.proto.retrieval_pb2 import RetrieveResponse

DEFAULT_MAX_ADS = 10
STAGES = ("queue", "input", "features", "generate", "post")


def retrieve(
    address: Annotated[str, typer.Option(help="HOST:PORT of the server.")] = "127.0.0.1:50051",
    request: RequestFile = None,
    line: RequestLine = 1,
    user: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Replaces FILE's values of NAME; repeatable."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=ID,ID",
            help="Entities whose ads not to return: campaign=9,12; repeatable.",
        ),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N", help="Most ads of one entity to return: advertiser=3; repeatable."
        ),
    ] = None,
    max_ads: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**32 - 1, help=f"Most ads to return. Default: FILE's, or {DEFAULT_MAX_ADS}."
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Beam profile. Default: FILE's, or the server's.")
    ] = None,
    ads: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Ads table, as grace build reads it: show titles, and why each ad is eligible.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Data folder with the ads table; instead of --ads."),
    ] = None,
    sids: Annotated[bool, typer.Option("--sids", help="Show each ad's SID.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds to wait for the reply.")
    ] = 10.0,
    wait: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait until the server is ready.")
    ] = 0.0,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Retrieve ads for a user from a running server: ads and stage times.

    `p(SID)`, which is exp(score), is the probability that the model gives to the ad's SID.

    Example: `grace retrieve --request demo/requests.jsonl --line 3 --user country=US --sids`
    """
    # gRPC reads this when it is loaded. Our errors say more than its lines.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from grace.client import Client, access_of

    if not math.isfinite(timeout + wait):
        raise InputError("--timeout and --wait: give a number of seconds")
    message = request_message(request, line)
    table = shown_table(ads, data)
    try:
        for name, given in _user_values(user or ()).items():
            message.user[name].values[:] = given
        for name, ids in ids_by_name(exclude or (), "--exclude ").items():
            message.exclude[name].ids[:] = ids
        for name, most in _limits(at_most or ()).items():
            message.at_most[name] = most
        message.profile = message.profile if profile is None else profile
    except UnicodeEncodeError:
        raise InputError(
            "--user, --exclude, --at-most or --profile is not UTF-8 text; write it in UTF-8"
        ) from None
    message.max_ads = max_ads or message.max_ads or DEFAULT_MAX_ADS
    message.include_sids |= sids
    access = access_of(tls_ca, tls_certificate, tls_key, token_file)
    # One attempt: the command shows what the server answers, refusals included.
    with Client(address, access.tls, access.token, retry=None) as client:
        if wait:
            client.wait_ready(wait)
        started = time.perf_counter()
        reply = client.retrieve(message, timeout=timeout).message
        total_ms = (time.perf_counter() - started) * 1e3
    user_values = {name: list(values.values) for name, values in message.user.items()}
    known = None if table is None else known_ads(table, reply.ad_ids, user_values)
    if as_json:
        shown = reply_json(reply) | {"total_ms": round(total_ms, 3)}
        print(
            json.dumps(
                shown | ({} if known is None else {"ads": _ads_json(reply, known)}), indent=2
            )
        )
    else:
        _print(reply, total_ms, known)


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


def _ads_json(
    reply: "RetrieveResponse", known: Mapping[int, KnownAd]
) -> list[dict[str, str | list[str] | None]]:
    """Return the table's id, title and reasons of each ad, in the order of the reply."""
    return [
        {
            "ad_id": str(ad_id),
            "item_id": known[ad_id].item_id if ad_id in known else None,
            "title": known[ad_id].title if ad_id in known else None,
            "why": [str(reason) for reason in known[ad_id].reasons] if ad_id in known else [],
        }
        for ad_id in reply.ad_ids
    ]


def _print(reply: "RetrieveResponse", total_ms: float, known: Mapping[int, KnownAd] | None) -> None:
    from grace.cli.tables import table_console

    console = table_console()
    if known is not None:
        for text in _known_ads(reply, known):
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    elif reply.ad_ids:
        console.print(_table(reply))
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
    for text in lines:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _known_ads(reply: "RetrieveResponse", known: Mapping[int, KnownAd]) -> Iterator[str]:
    for place, (ad_id, score) in enumerate(zip(reply.ad_ids, reply.scores, strict=True)):
        facts = f"p(SID) = {math.exp(score):.3g}"
        facts += f", SID {_sid(reply, place)}" if reply.sids.sid_of_ad else ""
        ad = known.get(ad_id)
        if ad is None:
            yield ad_lines(place + 1, "not in the ads table", ad_id, facts, ())[0]
        else:
            shown_id = ad_id if ad.item_id is None else ad.item_id
            yield from ad_lines(place + 1, ad.title, shown_id, facts, ad.reasons)


def _table(reply: "RetrieveResponse") -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    with_sids = len(reply.sids.sid_of_ad) > 0
    for heading in ("ad", "score", "p(SID)", *(("SID",) if with_sids else ())):
        table.add_column(heading, justify="right")
    for place, (ad_id, score) in enumerate(zip(reply.ad_ids, reply.scores, strict=True)):
        row = [str(ad_id), f"{score:.3f}", f"{math.exp(score):.3g}"]
        table.add_row(*row, *([_sid(reply, place)] if with_sids else []))
    return table


def _sid(reply: "RetrieveResponse", place: int) -> str:
    length = reply.sids.length
    first = reply.sids.sid_of_ad[place] * length
    return " ".join(map(str, reply.sids.tokens[first : first + length]))


def _user_values(assignments: Sequence[str]) -> dict[str, list[str]]:
    """Collect the values of each name; `name=` means that the name has no value."""
    user: dict[str, list[str]] = {}
    for assignment in assignments:
        name, value = split(assignment, "--user ", "NAME=VALUE, such as country=US")
        values = user.setdefault(name, [])
        values += [value] if value else []
    return user


def _limits(assignments: Sequence[str]) -> dict[str, int]:
    expected = "NAME=N, such as advertiser=3"
    limits = {}
    for assignment in assignments:
        name, most = split(assignment, "--at-most ", expected)
        limit = integer(most, 0, 2**32 - 1)
        if limit is None:
            raise InputError(f"--at-most {assignment}: write {expected}; N is 0 to 2^32 - 1")
        limits[name] = limit
    return limits
