import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from grace.cli.options import AsJson
from grace.cli.progress import progress_bars
from grace.cli.reports import print_shares
from grace.configs.machine import yield_cores_while_waiting
from grace.configs.options import EvaluationSpec

if TYPE_CHECKING:
    from grace.model.train.evaluate import CheckpointReport, Quality


def evaluate(spec: EvaluationSpec, as_json: AsJson = False) -> None:
    """Measure a checkpoint's recall and NDCG next to baselines, with and without targeting.

    Example: `grace evaluate --checkpoint checkpoint --data catalogue`
    """
    yield_cores_while_waiting()
    from grace.model.train.evaluate import report_on

    with progress_bars() as progress:
        report = report_on(spec, progress)
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
        return
    _print(report)


def _print(report: "CheckpointReport") -> None:
    print(f"Checkpoint {report.checkpoint}, {report.sids:,} SIDs of {report.sid_space}")
    if report.unknown_events:
        print(f"{report.unknown_events:,} events left out: the catalogue does not have their ads")
    print(
        f"\nThe newest event of {report.measured_users:,} of {report.held_out_users:,} held-out "
        "users, without targeting"
    )
    _print_table(report.without_targeting)
    targeted = report.targeted
    if targeted is None:
        print(
            "\nWith targeting: the log does not say who the users are: add columns named like the "
            "attributes of targeting.yaml"
        )
    else:
        print(
            f"\nWith targeting, by columns {', '.join(targeted.columns)} of the log: "
            f"{targeted.people:,} people, who may see {targeted.eligible_share:.1%} of the SIDs on "
            "average"
        )
        if targeted.missing:
            print(f"The log lacks {', '.join(targeted.missing)}: no user has a value for these.")
        print(f"{targeted.measured:,} of them may see an ad of their true SID.")
        if targeted.measured:
            print("Only SIDs that they may see:")
            _print_table(targeted.with_targeting)
            print("The same people, all SIDs:")
            _print_table(targeted.without_targeting)


def _print_table(found: Mapping[str, "Quality"]) -> None:
    rows = {}
    for name, quality in found.items():
        recall = {f"recall@{k}": share for k, share in quality.recall.items()}
        rows[name] = recall | {f"NDCG@{k}": share for k, share in quality.ndcg.items()}
    print_shares(rows)
