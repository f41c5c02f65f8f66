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
    from bench.demonstration import Answer, Outcome

__all__ = ["demo"]

SHOWN_ADS = 5


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep the files here. Default: a folder that is removed.")
    ] = None,
    users: Annotated[int, typer.Option(min=1, max=64, help="How many users to serve.")] = 3,
    force: Annotated[bool, typer.Option("--force", help="Replace files from before.")] = False,
) -> None:
    """Make a catalogue, build its snapshot, generate ads for users with a trained model, say why.

    Example: `grace demo --out demo`
    """
    from bench.demonstration import Demonstration, shopper
    from bench.synth import preset_spec, write_folder
    from cli.inspect import print_summary
    from index.builder import BuildSpec, build
    from index.storage import load_snapshot, verify_snapshot
    from index.summary import summarize

    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grace-")))
        _headline("1. A catalogue of ads")
        written = write_folder(preset_spec("demo"), folder, force=force)
        print(f"{written.ads:,} ads under {written.sids:,} SIDs, {written.requests} requests")
        _headline("2. Its snapshot")
        spec = BuildSpec(
            ads=(folder / "ads.parquet",),
            targeting=folder / "targeting.yaml",
            root=folder / "snapshots",
        )
        with progress_bars() as progress:
            build(spec, progress)
        verify_snapshot(spec.root)
        snapshot = load_snapshot(spec.root)
        print_summary(summarize(snapshot))
        demonstration = Demonstration(snapshot)
        titles = _titles(folder / "ads.parquet")
        requests = [shopper(snapshot, titles, "running shoes")]
        requests += _requests_with_clicks(folder / "requests.jsonl")
        for place, request in enumerate(requests[:users]):
            _headline(f"{3 + place}. User {request['request_id']}")
            _show(demonstration.answer(request, SHOWN_ADS), snapshot.trie.num_leaves, titles)
    if out is not None:
        print(f"\nThe files are in {out}. Go on with: grace inspect {out}/snapshots")


def _show(answer: "Answer", num_sids: int, titles: Mapping[int, str]) -> None:
    for name, values in answer.user.items():
        print(f"  {name}: {_some(values)}")
    print(f"  clicked last: {_some([titles[ad_id] for ad_id in answer.clicks], 3)}")
    print(f"  may lead to an eligible ad: {answer.admitted_sids:,} of {num_sids:,} SIDs")
    print(f"  decoding with the catalogue alone: {_told(answer.catalogue_alone)}")
    print(f"  decoding with targeting:           {_told(answer.with_targeting)}")
    for place, ad in enumerate(answer.ads, start=1):
        why = "; ".join(map(str, ad.reasons)) or "it is for everyone"
        print(f"    {place}. {titles[ad.ad_id]} (ad {ad.ad_id}, p = {ad.probability:.3f})")
        print(f"       {why}")
    if answer.refused is not None:
        print(f"  not returned: {titles[answer.refused.ad_id]} (ad {answer.refused.ad_id})")
        print(f"       {'; '.join(map(str, answer.refused.reasons))}")


def _told(outcome: "Outcome") -> str:
    share = outcome.matched / outcome.ads if outcome.ads else 0.0
    return (
        f"{outcome.sids} SIDs generated, {outcome.ads} ads, {outcome.matched} for this user "
        f"({share:.0%})"
    )


def _headline(text: str) -> None:
    print(f"\n{text}")


def _titles(ads: Path) -> dict[int, str]:
    import pyarrow.parquet as pq

    table = pq.read_table(ads, columns=["ad_id", "title"])
    return dict(zip(table["ad_id"].to_pylist(), table["title"].to_pylist(), strict=True))


def _requests_with_clicks(path: Path) -> list[dict[str, Any]]:
    requests = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [request for request in requests if "clicks" in request["features"].get("sequences", {})]


def _some(values: Sequence[str], most: int = 5) -> str:
    left = len(values) - most
    return ", ".join(values[:most]) + (f" and {left} more" if left > 0 else "")
