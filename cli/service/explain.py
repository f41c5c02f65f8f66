import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table

from grace.cli.options import number_of
from grace.cli.reports import plain_table, table_console
from grace.cli.service.admin import Call
from grace.cli.service.request_file import GivenRequest
from grace.cli.service.retrieve import reply_json
from grace.configs.options import Option

if TYPE_CHECKING:
    from grace.index.tables.ids import DataIds
    from grace.proto.retrieval_pb2 import ExplainResponse


def explain(
    given: GivenRequest,
    call: Call,
    ad: Annotated[str, Option("Id of the ad, as the ads table has it.", "ID")],
    data: Annotated[
        Path | None, Option("Data folder with the ads table and id maps: show the title.", "FOLDER")
    ] = None,
) -> None:
    """Explain why an ad is, or is not, in the reply to a request.

    The server searches once more for the request. Without `max_ads`, or with 0,
    it uses its default, as for any client.

    Example: `grace explain --ad 1000110656 --request request.json`
    """
    from grace.index.ads_table import AdsTable
    from grace.proto.retrieval_pb2 import ExplainRequest

    table = None if data is None else AdsTable(data)
    ids = None if table is None else table.ids
    number = number_of("ad", ad, ids)
    asked = ExplainRequest(ad_id=number, request=given.message(ids))
    with call.client() as client:
        reply = client.explain(asked, call.timeout)
    title = table.known([number], asked.request)[number].title if table else ""
    if call.as_json:
        shown = reply_json(reply) | ({} if table is None else {"title": title or None})
        print(json.dumps(shown, indent=2))
    else:
        _print(reply, ad, title, ids)


def _print(reply: "ExplainResponse", ad: str, title: str, ids: "DataIds | None") -> None:
    lines = [title] if title else []
    number = "" if ad == str(reply.ad_id) else f" (ad_id {reply.ad_id})"
    lines.append(f"ad {ad}{number}: {reply.text}")
    for entity in (*reply.stops, *reply.excluded_by, reply.limited_by):
        if ids is not None and entity.level in ids.mapped - {"ad"}:
            name = ids.names(entity.level, [entity.id])[0] or "not in its id map"
            lines.append(f"{entity.level} {entity.id} is {name}")
    if reply.sid:
        lines.append(f"SID {' '.join(map(str, reply.sid))}")
    lines += _rules(reply)
    print("\n".join(lines))
    if reply.steps:
        table_console().print(_steps(reply))
    served = f"snapshot {reply.snapshot_version}, checkpoint {reply.checkpoint}"
    print(f"{served}, profile {reply.profile}")
    if reply.ignored_names:
        print(f"not used by this catalogue and model: {', '.join(reply.ignored_names)}")


def _rules(reply: "ExplainResponse") -> Iterator[str]:
    from grace.index.forms.component import Reason

    for rule in reply.rules:
        user, deciding = tuple(rule.user), tuple(rule.deciding)
        reason = Reason(rule.name, rule.passes, rule.allows, user, deciding)
        passes = "passes" if rule.passes else "FAILS "
        yield f"{passes}  {rule.name}: {rule.allows} (user: {reason.values})"


def _steps(reply: "ExplainResponse") -> Table:
    headings = ("step", "token", "score", "number", "candidates", "beams", "lowest", "kept")
    table = plain_table("", *headings)
    for number, step in enumerate(reply.steps, start=1):
        score = f"{step.score:.3f}" if step.admitted else "not admitted"
        lowest = f"{step.lowest_score:.3f}" if step.HasField("lowest_score") else ""
        kept = "yes" if step.kept else "no"
        counts = (step.rank or "", step.candidates, step.beams)
        table.add_row(*map(str, (number, step.token, score, *counts, lowest, kept)))
    return table
