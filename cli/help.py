"""The help of the commands: a name for every value, such as `--wait NUMBER`, within 80 columns.

Typer writes `--wait <float range>`, and its tables cut long names of options.
"""

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

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
