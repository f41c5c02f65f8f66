"""`grace demo`: a small catalogue from its making to a user's ads, with the reasons."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.progress import progress_bars

if TYPE_CHECKING:
    from index.snapshot import Snapshot
    from index.users import UserAttributes

__all__ = ["demo"]

MOST_LEAVES = 200
SHOWN_ADS = 6


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep the files here. Default: a folder that is removed.")
    ] = None,
    users: Annotated[int, typer.Option(min=1, max=64, help="How many users to match.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the catalogue.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Replace files from before.")] = False,
) -> None:
    """Make a catalogue, build and verify its snapshot, match users, and say why.

    Example: `grace demo --out demo`
    """
    from bench.synth import preset_spec, write_folder
    from cli.inspect import print_summary
    from index.builder import BuildSpec, build
    from index.matchers import MatcherMode
    from index.storage import load_snapshot, verify_snapshot
    from index.summary import summarize

    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grace-")))
        _headline("1. A catalogue of ads")
        written = write_folder(preset_spec("tiny", None, seed), folder, force=force)
        print(f"{written.ads:,} ads under {written.sids:,} SIDs, {written.requests} requests")
        _headline("2. Its snapshot")
        spec = BuildSpec(
            ads=(folder / "ads.parquet",),
            targeting=folder / "targeting.yaml",
            root=folder / "snapshots",
            mode=MatcherMode.UNION,
        )
        with progress_bars() as progress:
            build(spec, progress)
        verify_snapshot(spec.root)
        snapshot = load_snapshot(spec.root)
        print_summary(summarize(snapshot))
        titles = _titles(folder / "ads.parquet")
        for place, request in enumerate(_requests_with_clicks(folder / "requests.jsonl")[:users]):
            _headline(f"{3 + place}. User {request['request_id']}")
            _match(snapshot, request, titles)
    if out is not None:
        print(f"\nThe files are in {out}. Go on with: grace inspect {out}/snapshots")


def _match(snapshot: "Snapshot", request: Mapping[str, Any], titles: Mapping[int, str]) -> None:
    import numpy as np

    from bench.neighbours import nearest_leaves
    from index.admission import admitted_entries
    from index.exact import ExactMatcher
    from index.users import UserEncoder

    user: UserAttributes = {name: tuple(v["values"]) for name, v in request["user"].items()}
    for name, values in user.items():
        print(f"  {name}: {_some(values)}")
    clicks = _clicks(request, snapshot.trie.sid_length)
    print(f"  clicked last: {_some([_title_of(snapshot, c, titles) for c in clicks[::-1]], 3)}")
    rows = UserEncoder(snapshot.schema, snapshot.set_values).encode([user])
    admitted = admitted_entries(snapshot, rows, 0)
    leaves = admitted[snapshot.trie.first_leaf - 1 :]
    print(f"  may lead to an eligible ad: {leaves.sum():,} of {len(leaves):,} SIDs")
    near = nearest_leaves(snapshot, clicks, admitted, MOST_LEAVES)
    offsets = np.array([0, len(near.leaves)], np.int64)
    matched = ExactMatcher(snapshot, threads=1).match(
        rows, offsets, near.leaves, near.scores, max_ads=SHOWN_ADS
    )
    counts = matched.counts
    print(
        f"  near the clicks: {len(near.leaves):,} SIDs, {counts.generated[0]:,} ads generated, "
        f"{counts.matched[0]:,} matched, {counts.returned[0]:,} returned"
    )
    _show_ads(snapshot, user, matched.ad_ids.tolist(), matched.scores.tolist(), titles)
    _show_one_refused(snapshot, user, near.leaves.tolist(), titles)


def _show_ads(
    snapshot: "Snapshot",
    user: "UserAttributes",
    ad_ids: list[int],
    scores: list[float],
    titles: Mapping[int, str],
) -> None:
    from index.explain import explain

    for place, (ad_id, score) in enumerate(zip(ad_ids, scores, strict=True), start=1):
        reasons = explain(snapshot, int(snapshot.ads.ordinals([ad_id])[0]), user)
        why = "; ".join(map(str, reasons)) or "it is for everyone"
        print(f"    {place}. {titles[ad_id]} (ad {ad_id}, {score:.0f} tokens shared with a click)")
        print(f"       {why}")


def _show_one_refused(
    snapshot: "Snapshot", user: "UserAttributes", leaves: list[int], titles: Mapping[int, str]
) -> None:
    """An ad that shares a SID with eligible ones, but is not for this user."""
    from index.explain import explain

    for leaf in leaves:
        begin, end = snapshot.ads.ad_offsets[leaf], snapshot.ads.ad_offsets[leaf + 1]
        for ordinal in range(begin, end):
            failed = [r for r in explain(snapshot, ordinal, user) if not r.passes]
            if failed:
                ad_id = int(snapshot.ads.ad_ids[ordinal])
                print(f"  not returned: {titles[ad_id]} (ad {ad_id})")
                print(f"       {'; '.join(map(str, failed))}")
                return


def _headline(text: str) -> None:
    print(f"\n{text}")


def _titles(ads: Path) -> dict[int, str]:
    import pyarrow.parquet as pq

    table = pq.read_table(ads, columns=["ad_id", "title"])
    return dict(zip(table["ad_id"].to_pylist(), table["title"].to_pylist(), strict=True))


def _requests_with_clicks(path: Path) -> list[dict[str, Any]]:
    requests = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [request for request in requests if "clicks" in request["features"].get("sequences", {})]


def _clicks(request: Mapping[str, Any], sid_length: int) -> list[tuple[int, ...]]:
    flat = request["features"]["sequences"]["clicks"]["sids"]
    return [tuple(flat[i : i + sid_length]) for i in range(0, len(flat), sid_length)]


def _title_of(snapshot: "Snapshot", sid: tuple[int, ...], titles: Mapping[int, str]) -> str:
    leaf = snapshot.trie.walk(sid) - snapshot.trie.first_leaf
    return titles[int(snapshot.ads.ad_ids[snapshot.ads.ad_offsets[leaf]])]


def _some(values: Sequence[str], most: int = 5) -> str:
    left = len(values) - most
    return ", ".join(values[:most]) + (f" and {left} more" if left > 0 else "")
