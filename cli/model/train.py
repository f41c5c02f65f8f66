import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from grace.cli.options import AsJson
from grace.cli.progress import note, progress_bars
from grace.cli.reports import print_shares
from grace.cli.signals import ending_in_order
from grace.configs.machine import yield_cores_while_waiting
from grace.configs.options import TrainingRun
from grace.configs.regular_files import require_new

if TYPE_CHECKING:
    from grace.model.train.run import TrainingReport

_COMPARED_AT = 10  # the cut-off at which the model should be ahead of `followers`


def train(run: TrainingRun, as_json: AsJson = False) -> None:
    """Train a model to predict what users click next, and measure its recall.

    The model's size and vocabulary follow from the data. The command writes a checkpoint,
    `recipe.yaml`, and `metrics.json` with recall@k. After Ctrl-C, the same command continues.

    Example: `grace train --data catalogue --out checkpoint`
    """
    runs = [run]
    if run.seeds > 1:
        seeds = range(run.seed, run.seed + run.seeds)
        runs = [replace(run, seed=seed, out=run.out / f"seed-{seed}") for seed in seeds]
    for each in runs:
        require_new(each.out)  # before the first training, which may take hours
    yield_cores_while_waiting()
    from grace.bench.result_file import write_result
    from grace.model.train.run import train_model

    def trained(run: TrainingRun) -> "TrainingReport":
        with ending_in_order() as ending, progress_bars() as show:

            def progress(step: str, done: int, total: int, latest: str) -> None:
                ending.in_steps = step == "train"
                ending.if_asked()
                show(step, done, total, latest)

            report = train_model(run, progress, note)
        write_result(run.out / "metrics.json", "grace", sys.argv[1:], [report.to_json()])
        if not as_json:
            _print(report, run.out)
        return report

    reports = [trained(each) for each in runs]
    if as_json:
        rows = [
            {"out": str(each.out), **report.to_json()}
            for each, report in zip(runs, reports, strict=True)
        ]
        print(json.dumps(rows if run.seeds > 1 else rows[0], indent=1))
    elif run.seeds > 1:
        _print_spread([report.recall["model"] for report in reports])


def _print_spread(recalls: Sequence[dict[int, float]]) -> None:
    print(f"\nRecall of the model over {len(recalls)} seeds")
    columns = {f"k = {k}": [recall[k] for recall in recalls] for k in recalls[0]}
    means = {head: fmean(shares) for head, shares in columns.items()}
    print_shares({"mean": means, "deviation": {k: stdev(x) for k, x in columns.items()}})


def _print(report: "TrainingReport", out: Path) -> None:
    print(
        f"{len(report.losses):,} steps of {report.config.batch} on {report.device} in "
        f"{report.train_seconds:.0f} s: loss {report.losses[0]:.2f} -> {report.final_loss:.2f} "
        "nats per SID"
    )
    print(
        f"{report.training_events:,} events of {report.training_users:,} users, {report.sids:,} "
        "SIDs"
    )
    if report.unknown_events:
        print(f"{report.unknown_events:,} events left out: the catalogue does not have their ads")
    if report.refused_ads:
        print(f"{report.refused_ads:,} ads left out: `grace build` refuses them")
    print(f"\nThe newest event of {report.measured_users:,} held-out users is among the first k")
    shares = report.recall.items()
    print_shares({name: {f"k = {k}": x for k, x in row.items()} for name, row in shares})
    k = max(k for k in report.recall["model"] if k <= _COMPARED_AT)
    if report.recall["model"][k] < report.recall["followers"][k]:
        print(
            f"The model is behind `followers` at k = {k}, so it is not worth serving: train "
            f"longer, with --steps {2 * report.config.steps} or more, or on a longer log"
        )
    print(f"\n{out}: checkpoint {report.checkpoint}, {report.weights:,} weights")
