"""`grace demo`: build a catalogue, serve it, retrieve ads for users over gRPC, and explain them."""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.ads_table import ad_lines
from grace.cli.options import Force
from grace.cli.progress import progress_bars
from grace.cli.retrieve import stage_times
from grace.configs.errors import GraceError, InputError

if TYPE_CHECKING:
    from grace.bench.running_server import RunningServer
    from grace.catalogues.demonstration import DemonstratedAd, Explanation, Outcome
    from grace.index.snapshot import Snapshot

ASKED_ADS = 100
SHOWN_ADS = 5
CALL_SECONDS = 30.0
OWN_FILES = ("serve.yaml", "server.log", "request.json")
FOLDER = "demo-files"
INTRODUCTION = """\
GRACE retrieves ads by generating them. A model writes Semantic IDs (SIDs), short sequences of
tokens that each name a few ads. At every token the decoder keeps only what can still lead to an ad
whose targeting rules allow this user."""
BY_HAND = """
The same by hand{where}. In one terminal:

  grace serve --config {config} --snapshots {out}/snapshots --checkpoint {checkpoint} \\
    --state-dir {out}/state

and in another:

  grace retrieve --wait 60 --request {out}/request.json --max-ads 5 --sids
  grpcurl -plaintext -d @ 127.0.0.1:50051 grace.v1.AdsRetrieval/Retrieve < {out}/request.json
  ghz --insecure --call grace.v1.AdsRetrieval.Retrieve -D {out}/request.json -c 8 127.0.0.1:50051"""


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep the files here. Without it, the command removes them.")
    ] = None,
    users: Annotated[int, typer.Option(min=1, max=64, help="Number of users to serve.")] = 3,
    force: Force = False,
) -> None:
    """Build a small catalogue, serve it with a trained model, and explain the ads users get.

    Example: `grace demo --out demo-files`
    """
    with ExitStack() as stack:
        stack.enter_context(_ending_in_order())
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grace-")))
        if taken := [name for name in OWN_FILES if (folder / name).exists() and not force]:
            raise InputError(f"--out {out} already holds {', '.join(taken)}; use --force")
        snapshot = _built(folder, force)

        # These imports take seconds, so a refusal comes before them.
        from grace import configs
        from grace.bench.running_server import RunningServer, write_server_config
        from grace.catalogues.demonstration import CHECKPOINT, shopper

        titles = _titles(folder / "ads.parquet")
        requests = [shopper(snapshot, titles, "running shoes")]
        requests += _requests_with_clicks(folder / "requests.jsonl")
        (folder / "request.json").write_text(json.dumps(requests[0], indent=2), encoding="utf-8")
        profiles = Path(configs.__file__).parent / "serve.yaml"
        config = write_server_config(
            folder / "serve.yaml", folder / "snapshots", CHECKPOINT, profiles
        )
        _headline("3. A server")
        server = RunningServer(config, folder / "server.log")
        try:
            _serve(server, config, snapshot, titles, requests[:users])
        except GraceError:
            print("\nThe end of the server's log:", *server.last_lines, sep="\n  ", file=sys.stderr)
            raise
    if out is not None:
        print(f"\nThe files are in {out}.")
    where = "" if out is not None else f", after grace demo --out {FOLDER}"
    paths = {"config": _short(profiles), "checkpoint": _short(CHECKPOINT)}
    print(BY_HAND.format(out=out or FOLDER, where=where, **paths))


def _built(folder: Path, force: bool) -> "Snapshot":
    from grace.catalogues.folder import require_room
    from grace.catalogues.synth import preset_spec, write_folder
    from grace.index.builder import BuildSpec, build
    from grace.index.storage import load_snapshot, verify_snapshot
    from grace.index.summary import summarize

    require_room(folder, force=force)
    print(INTRODUCTION)
    _headline("1. A catalogue of ads")
    written = write_folder(preset_spec("demo"), folder, force=force)
    print(f"{written.ads:,} ads under {written.sids:,} SIDs, {written.requests} users' requests")
    _headline("2. Its snapshot: the index that a server loads")
    ads, targeting, root = (
        folder / name for name in ("ads.parquet", "targeting.yaml", "snapshots")
    )
    with progress_bars() as progress:
        build(BuildSpec(ads=(ads,), targeting=targeting, root=root), progress)
    verify_snapshot(root)
    snapshot = load_snapshot(root)
    summary = summarize(snapshot)
    entries = " -> ".join(f"{level.entries:,}" for level in summary.levels)
    per_sid = "/".join(str(summary.ads_per_sid[key]) for key in ("p50", "p90", "p99", "max"))
    print(f"SIDs have {len(summary.levels)} tokens; the prefixes of 1, 2, .. tokens are {entries}")
    print(f"ads per SID, p50/p90/p99/max: {per_sid}; {summary.rejects} ads refused")
    print(f"{summary.rules:,} different targeting rules")
    print(f"{sum(summary.bytes.values()) / 1e6:.2f} MB in memory; `grace inspect` prints the rest")
    return snapshot


def _serve(
    server: "RunningServer",
    config: Path,
    snapshot: "Snapshot",
    titles: Mapping[int, str],
    requests: Sequence[Mapping[str, Any]],
) -> None:
    from grace.catalogues.demonstration import Demonstration
    from grace.client import RetrievalClient, request_of_json
    from grace.configs.serving import load_serving_config

    generation = load_serving_config(config).generation
    demonstration = Demonstration(snapshot, generation.profiles[generation.default_profile])
    started = time.perf_counter()
    with server, RetrievalClient(server.address) as client:
        seconds = time.perf_counter() - started
        where = f"process {server.pid} on {server.address}"
        print(f"grace serve is {where}, ready after {seconds:.1f} s", flush=True)
        for place, request in enumerate(requests, start=4):
            _headline(f"{place}. User {request['request_id']}")
            asked = {**request, "max_ads": ASKED_ADS, "include_sids": True}
            reply = client.retrieve(request_of_json(asked), CALL_SECONDS)
            explanation = demonstration.explain(request, reply)
            _show(explanation, snapshot.trie.num_leaves, titles)
            print(f"  The server's times: {stage_times(reply)}")
        _headline(f"{len(requests) + 4}. The end")
        server.stop()
        print(f"SIGTERM to process {server.pid}: it finished its work and ended with exit code 0")


def _show(answer: "Explanation", num_sids: int, titles: Mapping[int, str]) -> None:
    short = {name: values for name, values in answer.user.items() if len(values) <= 2}
    print(f"  user: {', '.join(f'{name} {_some(values)}' for name, values in short.items())}")
    for name, values in answer.user.items():
        if name not in short:
            print(f"  {name}: {_some(values)}")
    clicks = [titles[ad_id] for ad_id in answer.clicks]
    print(f"  clicked, newest first: {_some(clicks, 3, '; ')}")
    print(f"\n  {answer.admitted_sids:,} of {num_sids:,} SIDs lead to an eligible ad.")
    print(f"  Without targeting, decoding gives: {_counts(answer.catalogue_alone)}")
    print(f"  With targeting, the server gave:   {_counts(answer.with_targeting)}")
    print("\n  Returned, best first; p is the model's probability of the SID:")
    for ad in _shown(answer.ads):
        facts = f"p = {ad.probability:.3f}"
        print(*ad_lines(ad.place, titles[ad.ad_id], ad.ad_id, facts, ad.reasons), sep="\n")
    if answer.refused is not None:
        print("  Not returned, although under a generated SID:")
        print(f"    {titles[answer.refused.ad_id]} (ad {answer.refused.ad_id})")
        print(f"       {'; '.join(map(str, answer.refused.reasons))}")


def _shown(ads: Sequence["DemonstratedAd"]) -> Sequence["DemonstratedAd"]:
    """The best ads; if all of them are for everyone, also the best one that is not."""
    best = ads[:SHOWN_ADS]
    if any(ad.reasons for ad in best):
        return best
    return [*best, *[ad for ad in ads if ad.reasons][:1]]


def _counts(outcome: "Outcome") -> str:
    share = outcome.matched / outcome.ads if outcome.ads else 0.0
    generated = f"{outcome.sids} SIDs with {outcome.ads} ads"
    return f"{generated}; this user may see {outcome.matched} of these ads ({share:.0%})"


def _headline(text: str) -> None:
    print(f"\n{text}", flush=True)


def _titles(ads: Path) -> dict[int, str]:
    import pyarrow.parquet as pq

    table = pq.read_table(ads, columns=["ad_id", "title"])
    return dict(zip(table["ad_id"].to_pylist(), table["title"].to_pylist(), strict=True))


def _requests_with_clicks(path: Path) -> list[dict[str, Any]]:
    requests = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [request for request in requests if "clicks" in request["features"].get("sequences", {})]


def _some(values: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    left = len(values) - most
    listed = separator.join(values[:most]) or "not given"
    return listed + (f" and {left} more" if left > 0 else "")


def _short(path: Path) -> str:
    """The path as a user in the current folder would type it."""
    path = path.resolve()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let SIGTERM and a lost terminal end the command like Ctrl-C, so that its server ends too."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
