"""The help of the commands: a name for every value, such as `--wait NUMBER`, within 80 columns.

Typer writes `--wait <float range>`, and its tables cut long names of options.
"""

import re
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

VALUES = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
_TYPE = re.compile(r" ?<[^>]*>$")
"""The type that Typer adds to the name of an argument."""


class Command(TyperCommand):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each argument and option with its meaning, in two columns."""
        for heading, kind in (("Arguments", "argument"), ("Options", "option")):
            params = [each for each in self.get_params(ctx) if each.param_type_name == kind]
            records = [record for each in params if (record := each.get_help_record(ctx))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl([(_TYPE.sub("", name), text) for name, text in records])


class Group(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first sentence about each command. Typer would cut it after a line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(1000)) for name, each in commands if each]
            )


def name_values(command: Callable[..., None]) -> Callable[..., None]:
    """Name the values of arguments and options whose declaration gives no name."""
    for name, hint in get_type_hints(command, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, ArgumentInfo):
                option.metavar = option.metavar or name.upper()
            elif isinstance(option, OptionInfo):
                option.metavar = option.metavar or VALUES.get(_plain_type(hint.__origin__))
    return command


def _plain_type(hint: Any) -> Any:
    """Return the type of one value: that of `list[int] | None` is int."""
    of = [each for each in get_args(hint) if each is not NoneType]
    return _plain_type(of[0]) if of else hint
