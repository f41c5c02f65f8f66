"""The section of docs/performance.md on what half precision changes."""

from collections.abc import Sequence

from grace.bench.gpu.document_tables import markdown_table
from grace.bench.gpu.results import Row

__all__ = ["overlap_tables"]

_RECALLS = (
    ("model", "recall"),
    ("popularity", "popularity_recall"),
    ("random", "random_recall"),
)


def overlap_tables(rows: Sequence[Row]) -> str:
    parts = []
    for row in rows:
        if row["measure"] == "learning":
            parts.append(
                f"The trained model: {row['weights']:,} weights, {row['steps']:,} steps of "
                f"{row['batch']:,} over {row['events']:,} events in {row['train_seconds']:g} s; "
                f"loss {row['loss_first']:g} to {row['loss_final']:g} nats per SID of "
                f"{row['sids']:,}. "
                f"The newest event of {row['held_out_users']:,} held-out people is among the first "
                "k generated:\n"
            )
            names = {
                "model": "recall",
                "popularity": "popularity_recall",
                "random": "random_recall",
            }
            body = [[name, *(f"{x:.2%}" for x in row[key].values())] for name, key in names.items()]
            parts.append(markdown_table(("", *(f"k = {k}" for k in row["recall"])), body))
    own = [row for row in rows if row["measure"] == "overlap"]
    body = [
        [
            row["variant"],
            row["precision"],
            f"{row['sids']:,}",
            row["requests"],
            f"{row['generated']:,.0f}",
            f"**{row['overlap']:.2%}**",
            f"{row['worst_request']:.1%}",
            f"{row['top_10']:.2%}",
            f"{row['top_100']:.2%}",
            " / ".join(f"{share:.2%}" for share in row["step_overlap"]),
            " / ".join(f"{std:g}" for std in row["logit_std"]),
        ]
        for row in own
    ]
    headings = (
        "model", "type", "SIDs", "requests", "generated", "overlap", "worst request", "top 10",
        "top 100", "beams by step", "logits' deviation by step",
    )  # fmt: skip
    return "\n".join([*parts, markdown_table(headings, body)])
