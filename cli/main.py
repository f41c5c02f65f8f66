"""The `grace` command: the table of its sub-commands, and how it reports their errors.

The command `a-name` is the function `a_name` of the file a_name.py. Its docstring is its help and
ends with an example; `declared.py` makes its options. To add a command, write the file and add its
name and folder to COMMANDS; `grace --help` lists the commands in that order. A file with an `app`
holds a group of commands.
"""

import re
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from grace.cli.declared import as_options
from grace.configs.errors import GraceError, SnapshotError
from grace.configs.extras import install_command

COMMANDS = {
    "demo": "service",
    "init": "catalogue",
    "synth": "catalogue",
    "build": "catalogue",
    "inspect": "catalogue",
    "verify": "catalogue",
    "publish": "catalogue",
    "init-model": "model",
    "import-t5": "model",
    "export-t5": "model",
    "import-causal": "model",
    "sids": "catalogue",
    "import-sids": "catalogue",
    "train": "model",
    "evaluate": "model",
    "serve": "service",
    "admin": "service",
    "retrieve": "service",
    "explain": "service",
    "bench": "service",
    "doctor": "service",
}

NOT_LIGHT = ("torch", "uvloop")  # packages of the extra `serve`
INTERRUPTED = 130  # what a shell reports for a program ended by SIGINT

_TYPE = re.compile(r" ?<[^>]*>$")  # the type that Typer adds to the name of an argument


class Command(TyperCommand):
    """Help with a name for every value, such as `--wait NUMBER`, within 80 columns: Typer writes
    `--wait <float range>`, and its tables cut long names of options."""

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


class InOrder(Group):
    """Lists the commands in the order of COMMANDS. Typer would list groups after all others."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        return list(COMMANDS)


app = typer.Typer(
    name="grace",
    cls=InOrder,
    help="Generative ads retrieval: catalogues, snapshots, models, and the server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"grace {version('grace-serving')}")
        raise typer.Exit


@app.callback()
def grace(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: print an error that its user can act on as one line, then exit."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except GraceError as error:
            is_snapshot = isinstance(error, SnapshotError)
            remedy = "; build or publish another version" if is_snapshot else ""
            print(f"error: {error}{remedy}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except ModuleNotFoundError as error:
            if error.name not in NOT_LIGHT:
                raise
            name = command.__name__.replace("_", "-")
            remedy = install_command("serve")
            print(f"error: grace {name} needs {error.name}: {remedy}", file=sys.stderr)
            raise typer.Exit(1) from None
        except BrokenPipeError:
            raise
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            print(f"error: {place}{error.strerror or error}", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


for _command, _folder in COMMANDS.items():
    _name = _command.replace("-", "_")
    _module = import_module(f"grace.cli.{_folder}.{_name}")
    if hasattr(_module, "app"):
        for _below in _module.app.registered_commands:
            _below.cls = Command
            _below.callback = report_errors(_below.callback)
        app.add_typer(_module.app, name=_command, cls=Group)
    else:
        app.command(_command, cls=Command)(report_errors(as_options(getattr(_module, _name))))


def run() -> None:
    app()
