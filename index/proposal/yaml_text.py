"""The proposal as `tables.yaml` and `targeting.yaml`, each line with its reason."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from grace.index.proposal.log import OurColumn, TableProposal
from grace.index.proposal.propose import Proposal
from grace.index.proposal.roles import NAMED_BY_ROLE, UNREAD, Decision, Role, clock_of, values_of
from grace.index.tables.addresses import is_url
from grace.index.targeting.schema import ENDINGS

_PLAIN = re.compile(r"(\.{1,2}/)*[A-Za-z_/][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*", re.ASCII)
_NOT_TEXT = frozenset({"true", "false", "null", ".inf", ".nan"})
UNKNOWN = "unknown"  # a value of this name is what a user without one has

TURN_ON = (
    "To make one a rule, remove the `# ` before its lines and their heading in targeting.yaml and "
    "tables.yaml, and take it out of `ignore`. A column without lines needs other values."
)
_HEADINGS = {
    Role.ATTRIBUTE: "attributes:  # a user has one value; of several, all must be allowed",
    Role.SET: "sets:  # a user has several values; one in common with the ad's is enough",
    Role.RANGE: "ranges:  # a user without the number does not see ads that have a range",
    Role.FLIGHT: "flights:  # an ad is shown from its start until its end, by the clock",
    Role.PROPERTY: "properties:  # what ads are: requests may filter by them; they limit nobody",
}
CODEBOOK = "codebook"
ID_MAP = "ids.parquet"


def tables_yaml(proposal: Proposal, out: Path) -> str:
    return "".join(f"{line}\n" for line in _tables(proposal, out))


def targeting_yaml(proposal: Proposal) -> str:
    return "".join(f"{line}\n" for line in _targeting(proposal))


def _tables(proposal: Proposal, out: Path) -> Iterator[str]:
    yield f"# Proposed by `grace init` from {proposal.rows:,} rows: read it, change what is wrong."
    yield "ads:"
    yield f"  files: {_list(_from_folder(out, proposal.ads))}"
    if proposal.list_separator is not None:
        yield f"  list_separator: {quoted(proposal.list_separator)}  # between values of a cell"
    if proposal.time_unit is not None:
        yield f"  time_unit: {proposal.time_unit}  # of flights, since 1970"
    yield "  columns:  # our name: the table's"
    for each in proposal.decisions:
        yield from _column(each)
    unread = [each for each in proposal.decisions if each.role in UNREAD]
    # A build would take these for undeclared rules.
    if alike := [each for each in unread if each.facts.nested or each.column.endswith(ENDINGS)]:
        listed = _list(each.column for each in alike)
        yield f"  ignore: {listed}  # not rules, though they look like rules"
    if proposal.column_of(Role.SID) is None:
        yield f"sids: {CODEBOOK}  # the folder that `grace sids` writes"
    if not ((ids := proposal.column_of(Role.ID)) and ids.facts.are_integer_ids):
        yield f"id_map: {ID_MAP}  # numbers the ads' ids; a build adds new ones"
    entities = [each for each in proposal.decisions if each.role is Role.ENTITY]
    if texts := [each.name for each in entities if each.facts.is_text]:
        maps = ", ".join(f"{name}: {name}_{ID_MAP}" for name in texts)
        yield f"entity_ids: {{{maps}}}  # number entities whose ids are texts"
    for section, found in (("embeddings", proposal.embeddings), ("log", proposal.log)):
        if found is not None:
            yield from _section(section, found, out)
    yield from _ignored("ads", [each for each in unread if each.role is Role.IGNORED])
    if proposal.log is not None:
        yield from _ignored("log", [each for each in proposal.log.columns if not each.name])


def _column(each: Decision) -> Iterator[str]:
    if each.name and (each.role in NAMED_BY_ROLE or each.name != each.column):
        mark = "# " if each.role is Role.LEFT_OUT else ""
        yield f"{mark}    {each.name}: {quoted(each.column)}  # {_comment(each.reason)}"
    elif each.role is Role.CLAUSES:
        yield f"    # {each.column}: {each.reason}"


def _section(section: str, table: TableProposal, out: Path) -> Iterator[str]:
    """Write the section of a log or of embeddings, as a comment if it lacks a column."""
    mark = "# " if table.missing else ""
    if table.missing:
        names = ", ".join(each.name for each in table.missing)
        yield f"# To train, fill in {names} and remove `# ` from these lines:"
    yield f"{mark}{section}:"
    yield f"{mark}  files: {_list(_from_folder(out, table.files))}"
    if table.list_separator is not None:
        yield f"{mark}  list_separator: {quoted(table.list_separator)}"
    yield f"{mark}  columns:"
    for each in (*table.missing, *(each for each in table.columns if each.name)):
        theirs = f" {quoted(each.column)}" if each.column else ""
        yield f"{mark}    {each.name}:{theirs}  # {_comment(each.reason)}"
    if table.time_unit not in (None, "ms"):
        yield f"{mark}  time_unit: {table.time_unit}  # unit of the times, which count from 1970"


def _ignored(table: str, columns: Sequence[Decision | OurColumn]) -> Iterator[str]:
    if columns:
        yield f"# Ignored columns of the {table}:"
    for each in columns:
        yield f"#   {_comment(each.column)}: {_comment(each.reason)}"


def _targeting(proposal: Proposal) -> Iterator[str]:
    yield f"# Proposed by `grace init` from {proposal.rows:,} rows: who may see which ad."
    yield "# A value in an ad's column is a rule: only users who have it may see the ad."
    yield "# If a column only describes the ad, delete its lines here and in tables.yaml."
    if proposal.left_out:
        shown = ", ".join(quoted(each.column) for each in proposal.left_out)
        yield f"# LEFT OUT, so these columns limit nobody ({len(proposal.left_out)}): {shown}."
        yield f"# {TURN_ON}"
        for each in [each for each in proposal.left_out if not each.name]:
            yield f"# - {quoted(each.column)}: {_comment(each.reason)}"
    for role, heading in _HEADINGS.items():
        rules: dict[str, Decision] = {}  # of two ends, the first
        for each in proposal.decisions:
            if each.rule_role is role:
                rules.setdefault(each.rule, each)
        declared_first = sorted(rules.values(), key=lambda each: each.role is Role.LEFT_OUT)
        for at, each in enumerate(declared_first):
            mark = "# " if each.role is Role.LEFT_OUT else ""
            if at == 0:
                yield f"{mark}{heading}"
            yield from (mark + line for line in _rule(each, proposal))
    entities = [each for each in proposal.decisions if each.role is Role.ENTITY]
    if entities:
        yield "entities:  # what ads belong to: stops and limits go by them"
        for each in entities:
            yield f"  - {each.name}  # {_comment(each.reason)}"
    yield "hash_seed: 7  # any number; another one moves the bits of the values"


def _rule(each: Decision, proposal: Proposal) -> Iterator[str]:
    fields = "" if each.rule_role in (Role.ATTRIBUTE, Role.SET) else " {}"
    yield f"  {each.rule}:{fields}  # {_comment(each.reason)}"
    if fields:
        return
    if each.rule_role is Role.ATTRIBUTE:
        values = sorted(values_of(each, proposal.decisions))
        if clock := clock_of(each.facts, {*values}):
            yield f"    clock: {clock}  # the time gives a user without a value theirs"
            return
        yield f"    values: {_list(values)}"
        if UNKNOWN in values:
            yield f"    missing: {UNKNOWN}  # what a user without a value has"
        return
    yield "    max_request_values: 64  # of one user; a request with more is refused"


def _from_folder(out: Path, addresses: Iterable[str]) -> list[str]:
    """Return the addresses as a file in `out` names them."""
    # The folders themselves, not links to them: `..` of a link leads elsewhere.
    place = out.resolve()
    return [a if is_url(a) else os.path.relpath(Path(a).resolve(), place) for a in addresses]


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(map(quoted, values))}]"


def quoted(text: str) -> str:
    """Return a YAML scalar that is read as this text."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _comment(text: str) -> str:
    """Return the text as part of one line."""
    return text if text.isprintable() else json.dumps(text)[1:-1]
