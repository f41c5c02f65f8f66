"""The `grace` command: thin, one file per command.

`grace.cli.main` holds the table of commands and turns errors into one line and an exit code. A
command
file imports only the standard library, typer and `configs` at its top, and the rest inside its
function: `grace --help` stays instant.
"""
