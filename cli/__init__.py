"""The `grace` command: one short file per command, in folders by subject.

`grace.cli.main` holds the table of commands and turns errors into one line and an exit code. A
command's file imports only the standard library, typer and `configs` at its top, and the rest
inside its function: `grace --help` stays instant.
"""
