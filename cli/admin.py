"""`grace admin`: status, loads, rollbacks and stops of a running server."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from grace.cli.options import AsJson, TlsCa, TlsCertificate, TlsKey
from grace.configs.errors import CallError, InputError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from grace.client import AdminClient
    from grace.proto.retrieval_pb2 import GetStatusResponse, UpdateAdsResponse

ATTEMPTS = 10
"""Of an update whose number others take meanwhile."""

Address: TypeAlias = Annotated[str, typer.Option(help="HOST:PORT of the server's section admin.")]
Timeout: TypeAlias = Annotated[float, typer.Option(min=0.001, help="Seconds to wait.")]
Level: TypeAlias = Annotated[
    str, typer.Argument(help="ad, or an entity of the targeting schema, such as advertiser.")
]
AdIds: TypeAlias = Annotated[
    list[int], typer.Argument(min=0, max=2**63 - 1, help="Ids of that level.")
]
LOCAL = "127.0.0.1:50052"
QUICK, LONG = 10.0, 600.0

app = typer.Typer(no_args_is_help=True)


@app.callback()
def admin() -> None:
    """Ask a running server for its status, change what it serves, and stop ads.

    Example: `grace admin status`
    """


@app.command()
def status(
    address: Address = LOCAL,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    timeout: Timeout = QUICK,
    as_json: AsJson = False,
) -> None:
    """Show what the server serves, what is pinned, what fails, and what is stopped.

    Example: `grace admin status --address 127.0.0.1:50052`
    """
    with _client(address, tls_ca, tls_certificate, tls_key, timeout) as client:
        found = client.status(timeout)
    if as_json:
        _print_json(found)
    else:
        _print_status(found)


@app.command()
def load(
    version: Annotated[
        int,
        typer.Argument(
            min=0, max=2**64 - 1, help="Version to serve; 0: the one that CURRENT names."
        ),
    ] = 0,
    checkpoint: Annotated[
        str, typer.Option(help="Folder of a checkpoint on the server's machine, absolute.")
    ] = "",
    address: Address = LOCAL,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    timeout: Timeout = LONG,
    as_json: AsJson = False,
) -> None:
    """Load a snapshot, a checkpoint, or both as one pair; return once the server serves it.

    What is loaded stays until CURRENT changes. A checkpoint stays until the server restarts.

    Example: `grace admin load 41 --checkpoint /models/new`
    """
    with _client(address, tls_ca, tls_certificate, tls_key, timeout) as client:
        reply = client.load(version, checkpoint, timeout=timeout)
    if as_json:
        _print_json(reply)
    else:
        change = "now serves" if reply.changed else "already served"
        what = f"snapshot {reply.snapshot_version}, checkpoint {reply.checkpoint}"
        print(f"{address} {change} {what}")


@app.command()
def rollback(
    version: Annotated[
        int,
        typer.Argument(
            min=0, max=2**64 - 1, help="Version to serve; 0: the newest below the served one."
        ),
    ] = 0,
    address: Address = LOCAL,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    timeout: Timeout = LONG,
    as_json: AsJson = False,
) -> None:
    """Serve an older snapshot, and pin it until CURRENT names a newer one than before.

    The pin outlasts restarts; `grace admin unpin` removes it.

    Example: `grace admin rollback`
    """
    with _client(address, tls_ca, tls_certificate, tls_key, timeout) as client:
        reply = client.roll_back(version, timeout=timeout)
    if as_json:
        _print_json(reply)
    else:
        print(
            f"{address} serves {reply.snapshot_version}, pinned; before: {reply.previous_version}"
        )


@app.command()
def unpin(
    address: Address = LOCAL,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    timeout: Timeout = LONG,
    as_json: AsJson = False,
) -> None:
    """Remove the pin of a rollback, and serve what CURRENT names.

    Example: `grace admin unpin`
    """
    with _client(address, tls_ca, tls_certificate, tls_key, timeout) as client:
        reply = client.unpin(timeout)
    if as_json:
        _print_json(reply)
    else:
        pin = f"was pinned to {reply.previous_pin}" if reply.previous_pin else "had no pin"
        print(f"{address} serves {reply.snapshot_version}; it {pin}")


@app.command()
def stop(
    level: Level,
    ids: AdIds,
    address: Address = LOCAL,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    timeout: Timeout = QUICK,
    as_json: AsJson = False,
) -> None:
    """Stop ads: once this returns, no reply of the server has them.

    Example: `grace admin stop advertiser 7 9`
    """
    with _client(address, tls_ca, tls_certificate, tls_key, timeout) as client:
        _print_update(_updated(client, "stop", level, ids, timeout), "stopped", as_json)


@app.command()
def resume(
    level: Level,
    ids: AdIds,
    address: Address = LOCAL,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    timeout: Timeout = QUICK,
    as_json: AsJson = False,
) -> None:
    """Resume ads that were stopped at this level. An ad stays stopped while any level stops it.

    Example: `grace admin resume advertiser 7`
    """
    with _client(address, tls_ca, tls_certificate, tls_key, timeout) as client:
        _print_update(_updated(client, "resume", level, ids, timeout), "resumed", as_json)


def _client(
    address: str, ca: TlsCa, certificate: TlsCertificate, key: TlsKey, timeout: float
) -> "AdminClient":
    from grace.client import AdminClient, access_of

    if not math.isfinite(timeout):
        raise InputError("--timeout: give a number of seconds")
    return AdminClient(address, access_of(ca, certificate, key, None).tls)


def _updated(
    client: "AdminClient", change: str, level: str, ids: list[int], timeout: float
) -> "UpdateAdsResponse":
    """Send the next update. If another takes its number, try the number after that one."""
    from grace.proto.retrieval_pb2 import Ids, UpdateAdsRequest

    for _ in range(ATTEMPTS):
        found = client.status(timeout)
        if change == "stop" and found.HasField("snapshot"):
            _require_level(level, found.snapshot.entities)
        sequence = found.updates.sequence + 1
        request = UpdateAdsRequest(sequence=sequence, kind=UpdateAdsRequest.KIND_DELTA)
        getattr(request, change)[level].CopyFrom(Ids(ids=ids))
        reply = client.update_ads(request, timeout)
        if reply.applied:
            return reply
    raise CallError(
        "ABORTED",
        "",
        f"other updates took the sequence number {ATTEMPTS} times; send this one through what "
        "sends them, or try again",
    )


def _require_level(level: str, entities: Iterable[str]) -> None:
    """Refuse a level that the served snapshot does not know: the server would keep the stop for a
    later one, while the operator believes that the ads are stopped."""
    known = ("ad", *entities)
    if level not in known:
        fault = f"{level!r} is no level of the served snapshot; nothing was stopped"
        raise InputError(f"level: {fault}; give one of {', '.join(known)}")


def _print_update(reply: "UpdateAdsResponse", done: str, as_json: bool) -> None:
    if as_json:
        _print_json(reply)
    else:
        print(f"{done}; {reply.ads_stopped:,} ads are stopped in all (update {reply.sequence})")


def _print_json(message: "Message") -> None:
    from google.protobuf.json_format import MessageToDict

    fields = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    print(json.dumps(fields, indent=2))


def _print_status(found: "GetStatusResponse") -> None:
    for name, text in _status_rows(found):
        print(f"{name:<10}  {text}")


def _status_rows(found: "GetStatusResponse") -> Iterator[tuple[str, str]]:
    snapshot, model, load, updates = found.snapshot, found.model, found.load, found.updates
    state = found.State.Name(found.state).removeprefix("STATE_").lower()
    version, up = found.server_version, found.uptime_seconds
    yield "server", f"{state}, {version} on {found.device}, up {up:,.0f} s"
    if found.HasField("snapshot"):
        counts = f"{snapshot.sids:,} SIDs, {snapshot.ads:,} ads"
        facts = f"{snapshot.created_at}, {snapshot.sid_space}, {counts}"
        yield "snapshot", f"{snapshot.version} ({facts})"
        yield "checkpoint", f"{model.checkpoint} ({model.encoder})"
    yield "CURRENT", str(load.current_version) if load.current_version else "names no version"
    if load.pinned_version:
        until = f"until CURRENT exceeds {load.pinned_until_above}"
        yield "pinned", f"{load.pinned_version}, {until} (grace admin unpin)"
    if load.loading_version:
        yield "loading", str(load.loading_version)
    if load.fault:
        failed = f"{load.failed_version}: " if load.failed_version else ""
        yield "failing", f"{failed}{load.fault}"
    if updates.awaits_full:
        yield "updates", "awaits a FULL update before it serves"
    elif updates.sequence:
        levels = ", ".join(f"{count:,} {level}" for level, count in updates.stopped.items())
        stopped = f"{updates.ads_stopped:,} ads of this snapshot"
        yield "stopped", f"{stopped} (ids: {levels or 'none'}; update {updates.sequence})"
    yield "requests", f"{found.waiting} of {found.max_waiting} wait, {found.in_flight} in flight"
