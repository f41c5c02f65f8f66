"""`grace admin`: status, loads, rollbacks, stops and weights of a running server."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import gethostname
from time import monotonic
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from grace.cli.declared import as_options
from grace.cli.options import Connection, Data, data_ids, number_of
from grace.cli.progress import note
from grace.cli.service.retrieve import reply_json
from grace.configs.errors import CallError, InputError, RejectedAdsError
from grace.configs.options import Argument, Option, PutOptions

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from grace.client import AdminClient
    from grace.index.tables.ids import DataIds
    from grace.proto.retrieval_pb2 import GetStatusResponse, UnknownIds, UpdateAdsRequest

Level: TypeAlias = Annotated[
    str, Argument("ad, or an entity of the targeting schema, such as advertiser.")
]
Ids: TypeAlias = Annotated[list[str], Argument("Ids of the level.", "ID...")]
LONG = 600.0

app = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class Call(Connection):
    """A call to a server's section admin. Its fields are options of the command."""

    address: Annotated[str, "HOST:PORT that the server's section admin listens on."] = (
        "127.0.0.1:50052"
    )

    def client(self) -> "AdminClient":
        from grace.client import AdminClient

        return AdminClient(self.address, self.tls())

    def print(self, reply: "Message", text: str) -> None:
        print(json.dumps(reply_json(reply), indent=2) if self.as_json else text)


def _command(**defaults: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command that takes a `Call` first."""
    return lambda command: app.command()(as_options(command, **defaults))


def _version_or(default: str) -> Argument:
    return Argument(f"Version to serve; 0: {default}.", least=0, most=2**64 - 1)


@app.callback()
def admin() -> None:
    """Show what a running server does, change what it serves, put ads and stop them.

    Example: `grace admin status`
    """


@_command()
def status(call: Call) -> None:
    """Show what the server serves, what is pinned, what has failed, and what is stopped.

    Example: `grace admin status --address 127.0.0.1:50052`
    """
    with call.client() as client:
        found = client.status(call.timeout)
    call.print(found, "\n".join(f"{name:<10}  {text}" for name, text in _status_rows(found)))


@_command(timeout=LONG)
def load(
    call: Call,
    version: Annotated[int, _version_or("the one that CURRENT names")] = 0,
    checkpoint: Annotated[
        str, "Absolute path of a checkpoint's folder on the server's machine."
    ] = "",
) -> None:
    """Load a snapshot, a checkpoint, or both as one pair; return once the server serves it.

    The server keeps this snapshot until the next publish, or until it restarts. It keeps this
    checkpoint until it restarts.

    Example: `grace admin load 41 --checkpoint /models/new`
    """
    with call.client() as client:
        reply = client.load(version, checkpoint, timeout=call.timeout)
    change = "now serves" if reply.changed else "already served"
    what = f"snapshot {reply.snapshot_version}, checkpoint {reply.checkpoint}"
    call.print(reply, f"{call.address} {change} {what}")


@_command(timeout=LONG)
def rollback(
    call: Call, version: Annotated[int, _version_or("the newest below the served one")] = 0
) -> None:
    """Serve an older snapshot, and pin it until a newer one is published.

    The pin ends once CURRENT names a version above both the one that was served and the one that
    CURRENT named. It outlasts restarts. `grace admin unpin` removes it.

    Example: `grace admin rollback`
    """
    with call.client() as client:
        reply = client.roll_back(version, timeout=call.timeout)
    before = f"before: {reply.previous_version}"
    call.print(reply, f"{call.address} serves {reply.snapshot_version}, pinned; {before}")


@_command(timeout=LONG)
def unpin(call: Call) -> None:
    """Remove the pin of a rollback, and serve what CURRENT names.

    Example: `grace admin unpin`
    """
    with call.client() as client:
        reply = client.unpin(call.timeout)
    pin = f"was pinned to {reply.previous_pin}" if reply.previous_pin else "had no pin"
    call.print(reply, f"{call.address} serves {reply.snapshot_version}; it {pin}")


@_command()
def stop(call: Call, level: Level, ids: Ids, data: Data = None) -> None:
    """Stop ads. Once this returns, the server returns none of them.

    Example: `grace admin stop advertiser 7 9`, or `grace admin stop advertiser 'Acme, Inc.' --data
    shop`
    """
    _change_stops(call, "stop", level, ids, data)


@_command()
def resume(call: Call, level: Level, ids: Ids, data: Data = None) -> None:
    """Resume ads that were stopped at this level. An ad stays stopped while any level stops it.

    Example: `grace admin resume advertiser 7`
    """
    _change_stops(call, "resume", level, ids, data)


@_command()
def weight(
    call: Call,
    ads: Annotated[list[str], Argument("Ids of ads.", "AD...")],
    to: Annotated[float | None, "Live weight. Default: end the ads' live weights."] = None,
    data: Data = None,
) -> None:
    """Give ads a live weight, which takes the place of that in any snapshot, or end it.

    Example: `grace admin weight 4711 --to 0.5`, and `grace admin weight 4711` to end it
    """
    from grace.proto import retrieval_pb2 as wire

    update, names = wire.UpdateAdsRequest(), data_ids(data)
    numbers = [number_of("ad", ad, names) for ad in ads]
    if to is None:
        update.unweight[:] = numbers
    else:
        update.weights.extend(wire.AdWeight(ad_id=number, weight=to) for number in numbers)
    _update(call, update, "ended the live weights" if to is None else f"weighted {to:g}", names)


@_command(timeout=LONG)
def put(
    call: Call,
    how: PutOptions,
    tables: Annotated[
        list[str] | None, Argument("Tables of ads: files, folders or URLs.", "FILE...")
    ] = None,
    remove: Annotated[tuple[str, ...], Option("Remove this ad; repeatable.", "AD")] = (),
    wait: Annotated[bool, "Return only once the server serves the changes."] = True,
) -> None:
    """Put ads on the server, each in the place of an ad with its id, and remove ads.

    The tables have the columns of the ads table of --data, but only the ads that change. The server
    keeps the ads until a snapshot has them (grace build --updates-watermark).

    Example: `grace admin put new-ads.csv --data shop`
    """
    from grace.client.ads_tables import AdsSender, counted

    if not (tables or remove):
        raise InputError("nothing to do: name a table of ads to put, or --remove AD")
    ids, began = data_ids(how.data), monotonic()
    removed = [number_of("ad", each, ids) for each in dict.fromkeys(remove)]
    with call.client() as client:
        sent = AdsSender(client, how, call.timeout, note).send(tables or (), removed, wait=wait)
        served, seconds = sent.visible >= sent.sequence, round(monotonic() - began, 3)
        fault = client.status(call.timeout).updates.changes_fault if wait and not served else ""
    if call.as_json:
        print(json.dumps(asdict(sent) | {"served": served, "seconds": seconds}, indent=2))
    else:
        for each in sent.refused:
            print(f"refused: {each}")
        state = f"{'served' if served else 'kept'} after {seconds:g} s (update {sent.sequence})"
        print(f"{counted(sent.put)} put, {sent.removed:,} removed: {state}")
    if sent.absent:
        note(f"--remove: the server did not have {sent.absent:,} of these ads")
    if sent.refused:
        text = f"{counted(len(sent.refused))} refused; correct and put again"
        raise RejectedAdsError(text)
    if fault:
        raise CallError("UNAVAILABLE", "", f"the server keeps the ads, but cannot serve: {fault}")


@_command()
def stops(call: Call, data: Data = None) -> None:
    """List the ids that are stopped at each level, also those that the snapshot does not know.

    Example: `grace admin stops`
    """
    names = data_ids(data)
    with call.client() as client:
        levels = sorted(client.status(call.timeout).updates.stopped)
        found = {each: _shown(names, each, client.stops(each, call.timeout)) for each in levels}
    if call.as_json:
        print(json.dumps(found))
        return
    if not any(found.values()):
        print("nothing is stopped")
    for level, ids in found.items():
        for stopped in ids:
            print(level, _text(names, stopped))


@_command(timeout=LONG)
def follow(
    call: Call,
    file: Annotated[
        Path,
        Argument("JSON lines, each an UpdateAdsRequest; or a folder of tables.", "FILE|FOLDER"),
    ],
    how: PutOptions,
    sent: Annotated[
        Path | None,
        Option("File that notes which tables were sent. Default: a hidden one in FOLDER.", "FILE"),
    ] = None,
) -> None:
    """Send the updates of a file, or the tables of a folder, also later ones, until interrupted.

    The file may grow, and another file may take its name. At a faulty line the command stops
    sending, until a FULL update or another file comes. After a restart, of the command or of the
    server, it goes on after the server's last update. No other sender may use the same numbers.

    Of a folder, the command sends each table of ads that comes into it, as `grace admin put` does,
    in the order of their names. At a faulty table it waits until that is corrected or removed.

    Example: `grace admin follow updates.jsonl`, or `grace admin follow incoming --data shop`
    """
    from grace.client.follower import Follower
    from grace.client.updates_file import UpdatesFollower

    def show(text: str, is_fault: bool) -> None:
        line = {"sequence": follower.sequence, "fault" if is_fault else "done": text}
        stream = sys.stderr if is_fault and not call.as_json else sys.stdout
        print(json.dumps(line) if call.as_json else text, file=stream, flush=True)

    follower: Follower
    with call.client() as client:
        if file.is_dir():
            from grace.client.ads_tables import AdsFolderFollower, AdsSender

            sender = AdsSender(client, how, call.timeout, lambda text: show(text, False))
            name = re.sub(r"[^\w.-]", "-", f".sent-{gethostname()}-{call.address}.json")
            follower = AdsFolderFollower(file, sent or file / name, sender, show)
        else:
            follower = UpdatesFollower(file, client, call.timeout, show)
        follower.run()


def _change_stops(call: Call, change: str, level: str, ids: list[str], data: Path | None) -> None:
    from grace.proto.retrieval_pb2 import UpdateAdsRequest

    update, names = UpdateAdsRequest(), data_ids(data)
    getattr(update, change)[level].ids[:] = [number_of(level, each, names) for each in ids]
    _update(call, update, "stopped" if change == "stop" else "resumed", names)


def _update(call: Call, update: "UpdateAdsRequest", done: str, names: "DataIds | None") -> None:
    with call.client() as client:
        found = client.status(call.timeout)
        if found.HasField("snapshot"):
            known = ("ad", *found.snapshot.entities)
            _require_levels(update.stop, known)
            _require_levels(update.resume, dict.fromkeys((*known, *found.updates.stopped)))
        reply = client.update_next(update, call.timeout)
    now = f"{reply.ads_stopped:,}, before {found.updates.ads_stopped:,}"
    text = f"{done}; stopped ads of the served snapshot: {now}"
    unknown = [_unknown_ids(*each, names) for each in sorted(reply.unknown.items())]
    call.print(reply, "\n".join([f"{text} (update {reply.sequence})", *unknown]))


def _shown(names: "DataIds | None", level: str, ids: Iterable[int]) -> list[int | str]:
    """Return ids as the tables have them. A number that the id map does not have stays a number."""
    numbers = list(ids)
    found = numbers if names is None else names.names(level, numbers)
    return [name or number for name, number in zip(found, numbers, strict=True)]


def _text(names: "DataIds | None", shown: int | str) -> str:
    return f"number {shown}" if names is not None and isinstance(shown, int) else str(shown)


def _unknown_ids(level: str, unknown: "UnknownIds", names: "DataIds | None") -> str:
    left = unknown.count - len(unknown.ids)
    listed = ", ".join(_text(names, each) for each in _shown(names, level, unknown.ids))
    listed += f" and {left:,} more" if left else ""
    return f"not in the served snapshot, so only a later one may have them: {level} {listed}"


def _require_levels(levels: Iterable[str], known: Iterable[str]) -> None:
    """Refuse levels that the served snapshot does not know. A resumed one may have stops instead.

    The server would keep the stop for a later snapshot, and the operator would believe that the ads
    are stopped now.
    """
    for level in levels:
        if level not in known:
            fault = f"{level!r} is not a level of the served snapshot, and nothing has changed"
            raise InputError(f"level: {fault}; give one of {', '.join(known)}")


def _status_rows(found: "GetStatusResponse") -> Iterator[tuple[str, str]]:
    snapshot, model, load, updates = found.snapshot, found.model, found.load, found.updates
    state = found.State.Name(found.state).removeprefix("STATE_").lower()
    version, up = found.server_version, found.uptime_seconds
    yield "server", f"{state}, {version} on {found.device}, up {up:,.0f} s"
    if found.HasField("snapshot"):
        counts = f"{snapshot.sids:,} SIDs, {snapshot.ads:,} ads"
        facts = f"{snapshot.created_at}, {snapshot.sid_space}, mode {snapshot.mode}, {counts}"
        yield "snapshot", f"{snapshot.version} ({facts})"
        yield "checkpoint", f"{model.checkpoint} ({model.encoder})"
    yield (
        "CURRENT",
        str(load.current_version) if load.current_version else "missing, or cannot be read",
    )
    if load.pinned_version:
        until = f"until CURRENT exceeds {load.pinned_until_above}"
        yield "pinned", f"{load.pinned_version}, {until} (grace admin unpin)"
    if load.loading_version:
        yield "loading", str(load.loading_version)
    if load.fault:
        failed = f"{load.failed_version}: " if load.failed_version else ""
        yield "failing", f"{failed}{load.fault}"
    if updates.awaits_full:
        yield "updates", "the server waits for a FULL update before it serves"
    elif updates.sequence:
        levels = ", ".join(f"{count:,} {level}" for level, count in updates.stopped.items())
        stopped = f"{updates.ads_stopped:,} ads of this snapshot"
        yield "stopped", f"{stopped} (ids: {levels or 'none'}; update {updates.sequence})"
        if updates.weights:
            yield "weights", f"of {updates.weights:,} ads are live"
    if updates.ads_put or updates.ads_removed or updates.changes_waiting or updates.puts_refused:
        counts = f"{updates.ads_put:,} put, {updates.ads_removed:,} removed"
        waiting = f"{updates.changes_waiting:,} wait, {updates.puts_refused:,} do not fit"
        yield "changes", f"{counts}, {waiting} (up to update {updates.visible})"
    if updates.changes_fault:
        yield "unserved", updates.changes_fault
    if found.HasField("updates") and snapshot.updates_watermark > updates.sequence:
        has = f"the updates up to {snapshot.updates_watermark}"
        only = f"this server only up to {updates.sequence}"
        yield "behind", f"the served snapshot has {has}, {only}: send a FULL update"
    yield "requests", f"{found.waiting} of {found.max_waiting} wait, {found.in_flight} in flight"
