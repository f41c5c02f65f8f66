import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from grace.cli.options import Force
from grace.cli.progress import progress_bars
from grace.cli.service.retrieve import known_ads, stage_times
from grace.cli.signals import ending_in_order

if TYPE_CHECKING:
    from grace.bench.running_server import RunningServer
    from grace.catalogues.demonstration import Branch, Step
    from grace.index.snapshot import Snapshot

ASKED_ADS = 100
SHOWN_ADS = 5
SHOWN_TITLES = 3  # of each variant of the request
ADMITTED, PRUNED = 2, 2  # branches of a step that are shown, besides the chosen one
LEAST_LOST = 0.01  # the least probability of pruned branches that a line mentions
CALL_SECONDS = 30.0
OWN_FILES = ("serve.yaml", "server.log", "request.json")
INTRODUCTION = """\
GRACE retrieves ads by generating them. A model writes Semantic IDs (SIDs), short sequences of
tokens that each name a few ads. At every token the decoder keeps only what can still lead to an ad
whose targeting rules allow this user."""
BY_HAND = """
All files are in {out}. To do the same by hand, run in one terminal:

  {grace} serve --snapshots {out}/snapshots --checkpoint {checkpoint} --state-dir {out}/state

and in another:

  {grace} retrieve --wait 60 --request {out}/request.json --data {out} --max-ads 5
  {grace} admin status
  {grace} inspect {out}/snapshots"""


def demo(
    out: Annotated[Path, "Folder for the files."] = Path("demo-files"), force: Force = False
) -> None:
    """Serve a small catalogue, and show for one user what targeting does at every token.

    Example: `grace demo --out demo-files`
    """
    from grace.catalogues.folder import require_room

    require_room(out, force=force)
    require_room(out, OWN_FILES, force=force)
    with ending_in_order():
        snapshot = _built(out, force)

        # These imports take seconds, so a refusal comes before them.
        from grace import configs
        from grace.bench.running_server import RunningServer, write_server_config
        from grace.catalogues.demonstration import CHECKPOINT

        profiles = Path(configs.__file__).parent / "serve.yaml"
        config = write_server_config(out / "serve.yaml", out / "snapshots", CHECKPOINT, profiles)
        _serve(RunningServer(config, out / "server.log"), snapshot, out)
    words = (sys.argv[0], os.path.relpath(CHECKPOINT.resolve()), str(out))
    grace, checkpoint, folder = map(shlex.quote, words)
    print(BY_HAND.format(grace=grace, checkpoint=checkpoint, out=folder))


def _built(folder: Path, force: bool) -> "Snapshot":
    from grace.catalogues.synth import preset_spec, write_folder
    from grace.index.builder import BuildSpec, build
    from grace.index.storage import load_snapshot
    from grace.index.tables.data_folder import read_data_folder
    from grace.index.verify import verify_snapshot

    print(INTRODUCTION)
    _headline("1. A catalogue and a server")
    written = write_folder(preset_spec("demo"), folder, force=force)
    print(f"  grace synth: {written.ads:,} ads under {written.sids:,} SIDs of 4 tokens")
    root = folder / "snapshots"
    with progress_bars() as progress:
        # An older demo's version, which this GRACE may not read, does not keep it from publishing.
        spec = BuildSpec(read_data_folder(folder), root, max_coverage_drop=1)
        build(spec, progress)
    verify_snapshot(root)
    snapshot = load_snapshot(root)
    rules = snapshot.rules.num_rules
    print(
        f"  grace build: a snapshot, the index that a server loads, with {rules:,} targeting rules"
    )
    return snapshot


def _serve(server: "RunningServer", snapshot: "Snapshot", folder: Path) -> None:
    from grace.catalogues.demonstration import USER, VARIANTS, Demonstration
    from grace.client import Client

    demonstration = Demonstration(snapshot, folder)
    request = demonstration.request
    (folder / "request.json").write_text(json.dumps(request, indent=2), encoding="utf-8")
    started = time.perf_counter()
    with server, Client(server.address) as client:
        seconds = time.perf_counter() - started
        where = f"process {server.pid} on {server.address}"
        print(f"  grace serve: {where}, ready after {seconds:.1f} s", flush=True)
        asked = {**request, "max_ads": ASKED_ADS, "include_sids": True}
        reply = client.retrieve(asked, timeout=CALL_SECONDS).message
        _headline(f"2. One user, {request['request_id']}")
        for name, values in USER.items():
            print(f"  {name:9} {', '.join(values)}")
        print(f"  {'at':9} {next(iter(VARIANTS))}")
        for ad in reversed(demonstration.clicked):
            print(f"  {'clicked':9} {ad.title}\n{'':12}{'; '.join(map(str, ad.reasons))}")
        best = reply.sids.tokens[: reply.sids.length]
        _headline(f"3. The server's best SID for this user, {' '.join(map(str, best))}")
        _show_steps(demonstration.steps(best))
        _headline(f"4. The best of {reply.counts.ads_matched} ads for this user")
        print(*islice(known_ads(reply, demonstration.ads), 2 * SHOWN_ADS), sep="\n")
        print(f"  The server's times: {stage_times(reply)}")
        _headline("5. The same user at other times, and with a filter")
        for name, changes in VARIANTS.items():
            varied = client.retrieve({**asked, **changes}, timeout=CALL_SECONDS).message
            eligible = f"{demonstration.eligible_ads(changes):,} of {len(demonstration.ads):,}"
            print(f"  {name}: {eligible} ads are for this user; the best of them:")
            titles = dict.fromkeys(demonstration.ads[ad].title for ad in varied.ad_ids)
            print(f"    {'; '.join(islice(titles, SHOWN_TITLES))}")


def _show_steps(steps: "Sequence[Step]") -> None:
    print("  Each line: a token, the model's probability of it, and an ad that it leads to.")
    print("  ▸ the token of this SID    ✗ pruned, since no ad below is for this user")
    for number, step in enumerate(steps, start=1):
        lost = sum(branch.probability for branch in step.pruned)
        admitted = len(step.branches) - len(step.pruned)
        shown = f"{admitted} of {len(step.branches)} tokens lead to an ad for this user"
        cut = f"; the others had {lost:.0%} of the probability" if lost >= LEAST_LOST else ""
        print(f"  token {number}: {shown}{cut}")
        for branch in _some_branches(step):
            mark = "✗" if not branch.admitted else "▸" if branch.token == step.chosen else " "
            facts = f"{branch.eligible_sids} of {branch.sids} SIDs"
            if not branch.admitted:
                facts = next(str(reason) for reason in branch.ad.reasons if not reason.passes)
            shown = f"{branch.token:3} {branch.probability:6.1%}  {branch.ad.title:42}"
            print(f"  {mark} {shown} {facts}")


def _some_branches(step: "Step") -> "list[Branch]":
    """The chosen branch, and the most probable of the others."""
    others = [each for each in step.branches if each.admitted and each.token != step.chosen]
    shown = {each.token for each in (*others[:ADMITTED], *step.pruned[:PRUNED])} | {step.chosen}
    return [each for each in step.branches if each.token in shown]


def _headline(text: str) -> None:
    print(f"\n{text}", flush=True)
