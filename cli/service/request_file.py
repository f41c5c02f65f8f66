"""The request that a command sends: from a file of JSON or JSON lines, and from options."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from grace.cli.options import number_of
from grace.configs.errors import InputError, RequestError
from grace.configs.options import Option

if TYPE_CHECKING:
    from grace.index.tables.ids import DataIds
    from grace.proto.retrieval_pb2 import RetrieveRequest

_IDS = "NAME=ID,ID, such as campaign=9,12"
_EVENTS = "NAME=ID,ID, such as clicks=9,12"
_VALUES = "NAME=VALUES, such as category=food,tv"
_COMMA = re.compile(r",(?! )")  # a comma before a blank is part of an id, as in `Acme, Inc.`


@dataclass(frozen=True, slots=True)
class GivenRequest:
    """The options of every command that sends a request. They replace values of FILE."""

    request: Annotated[
        str | None,
        Option("A request as JSON, or JSON lines, whose first line is sent; -: stdin.", "FILE"),
    ] = None
    user: Annotated[
        list[str] | None,
        Option("Replaces FILE's values of NAME; repeatable. A range: NAME:=NUMBER.", "NAME=VALUE"),
    ] = None
    exclude: Annotated[
        list[str] | None,
        Option("Leave out the ads of these entities: campaign=9,12; repeatable.", "NAME=ID,ID"),
    ] = None
    at_most: Annotated[
        list[str] | None,
        Option("Most ads of one entity to return: advertiser=3; repeatable.", "NAME=N"),
    ] = None
    filters: Annotated[
        list[str] | None,
        Option(
            "Only such ads: category=food,tv or tag.none_of=sale; repeatable.",
            "NAME=VALUES",
            name="--filter",
        ),
    ] = None
    at: Annotated[
        str | None, Option("Test flights and clocks at this time: 2026-11-27T09:00:00Z.", "TIME")
    ] = None
    utc_offset_minutes: Annotated[
        int | None, Option("Minutes that the user's time is ahead of UTC.", least=-840, most=840)
    ] = None
    events: Annotated[
        list[str] | None,
        Option("With --data, ids of a history's ads, oldest first: clicks=9,12.", "NAME=ID,ID"),
    ] = None
    max_ads: Annotated[
        int | None, Option("Most ads to return. Default: FILE's.", least=1, most=2**32 - 1)
    ] = None
    profile: Annotated[str | None, "Beam profile. Default: FILE's, or the server's."] = None
    no_strict: Annotated[bool, "Ignore names that the server does not know, and list them."] = False

    def message(self, ids: "DataIds | None" = None) -> "RetrieveRequest":
        """Return the file's request, with the values of the options.

        `ids` translates the ids in --events and --exclude.
        """
        from grace.client import request_of, request_of_json

        message = _request_message(self.request)
        user, exclude, filters = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        for name, given in _by_name(self.user, "--user", "NAME=VALUE, such as country=US"):
            values = {"values": [value for value in given if value]}
            number = {"number": given[-1]}
            user[name.removesuffix(":")] = number if name.endswith(":") else values
        for name, given in _by_name(self.exclude, "--exclude", _IDS):
            texts = [text for each in given for text in _COMMA.split(each)]
            exclude[name] = {"ids": [number_of(name, text, ids) for text in texts]}
        limits = _by_name(self.at_most, "--at-most", "NAME=N, such as advertiser=3")
        for path, given in _by_name(self.filters, "--filter", _VALUES):
            name, _, key = path.partition(".")
            texts = [text for each in given for text in _COMMA.split(each) if text]
            if not texts:  # an empty list would pass every ad
                raise InputError(f"--filter {path}=: write {_VALUES}")
            of_name, key = filters.setdefault(name, {}), key or "any_of"
            of_name[key] = given[-1] if key == "unknown" else of_name.get(key, []) + texts
        options = {
            "user": user,
            "exclude": exclude,
            "at_most": {name: given[-1] for name, given in limits},
            "filters": filters,
            "max_ads": self.max_ads,
        }
        message.MergeFrom(request_of_json(options))  # entries of the same name are replaced
        for name, given in _by_name(self.events, "--events", _EVENTS):
            items = [text for each in given for text in _COMMA.split(each) if text]
            if items and ids is None:
                raise InputError(f"--events {name}: give --data FOLDER, which has the ads' SIDs")
            unknown: list[str] = []
            history = request_of({"sequences": {name: items}}, ids, unknown)
            if unknown:
                fault = f"no ad with a SID has the id {', '.join(unknown)}"
                raise InputError(f"--events {name}: {fault}; give ids of the folder's ads")
            message.features.MergeFrom(history.features)
        if self.profile is not None:
            message.profile = self.profile
        if self.at is not None:
            message.at = _milliseconds(self.at)
        if self.utc_offset_minutes is not None:
            message.utc_offset_minutes = self.utc_offset_minutes
        message.strict &= not self.no_strict
        return message


def _by_name(
    assignments: Sequence[str] | None, option: str, expected: str
) -> Iterable[tuple[str, list[str]]]:
    """Return the right sides of each NAME=VALUE by name."""
    found: dict[str, list[str]] = {}
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise InputError(f"{option} {assignment}: write {expected}")
        found.setdefault(name, []).append(value)
    return found.items()


def _milliseconds(at: str) -> int:
    from grace.client import request_of

    try:
        return request_of({"at": int(at) if at.isdecimal() else datetime.fromisoformat(at)}).at
    except (ValueError, RequestError):
        form = "2026-11-27T09:00:00Z, with a zone, or milliseconds"
        raise InputError(f"--at {at}: write {form}") from None


def _request_message(source: str | None) -> "RetrieveRequest":
    """Read a request, strict unless it says otherwise. -: standard input, None: an empty one."""
    from grace.client import request_of_json

    if source is None:
        return request_of_json({"strict": True})
    name = "standard input" if source == "-" else source
    try:
        given = _first(_text(source, name))
        if isinstance(given, dict) and given.get("strict") is None:
            given["strict"] = True
        return request_of_json(given)
    except RequestError as error:
        raise InputError(f"{name}: {error}") from None
    except json.JSONDecodeError as fault:
        place = f"line {fault.lineno}, column {fault.colno}"
        raise InputError(f"{name}: no JSON request: {fault.msg} at {place}") from None
    except (ValueError, RecursionError):
        fault_text = "a number is too long, or lists are nested too deep"
        raise InputError(f"{name}: no JSON request: {fault_text}") from None


def _first(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as fault:
        if fault.msg == "Extra data" and text[: fault.pos].endswith("\n"):  # JSON lines
            return json.loads(text[: fault.pos])
        raise


def _text(source: str, name: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}; give a request as JSON") from None
    except UnicodeDecodeError:
        raise InputError(f"{name}: not UTF-8 text; give a request as JSON") from None
