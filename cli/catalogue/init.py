import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from grace.cli.options import AsJson
from grace.cli.progress import progress_bars
from grace.configs.errors import InputError
from grace.configs.options import Option

if TYPE_CHECKING:
    from grace.index.proposal.propose import Proposal

_CODES = ((30_000, 64), (1_000_000, 256), (float("inf"), 512))
"""The most ads, and the codes per level of their SIDs."""


def init(
    ads: Annotated[
        list[str],
        Option("Parquet, JSON lines or CSV: file, folder of them, or URL; repeatable.", "TABLE"),
    ],
    out: Annotated[Path, "Folder to write the two files to."],
    log: Annotated[list[str] | None, Option("Log of interactions; repeatable.", "TABLE")] = None,
    embeddings: Annotated[
        list[str] | None, Option("Parquet or JSON lines of ids and vectors.", "TABLE")
    ] = None,
    id_column: Annotated[
        str | None, Option("The ads' ids. Default: found by its name.", "COLUMN", name="--id")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Propose `tables.yaml` and `targeting.yaml` for an ads table, each line with its reason.

    It reads all rows, asks nothing and replaces no file. Read both files before the first build:
    a column that is left out limits nobody, and a column that only describes the ad is no rule.

    Example: `grace init --ads raw/ads.csv --embeddings raw/items.parquet --log raw/clicks.csv --out
    shop`
    """
    from grace.index.proposal.propose import propose
    from grace.index.proposal.yaml_text import tables_yaml, targeting_yaml
    from grace.index.tables.data_folder import TABLES_FILE, TARGETING_FILE

    tables, targeting = out / TABLES_FILE, out / TARGETING_FILE
    for path in (tables, targeting):
        if path.exists() or path.is_symlink():
            raise InputError(f"{path}: is already there; name another --out, or move it away")
    with progress_bars() as progress:
        proposal = propose(ads, log or (), id_column, progress, embeddings or ())
    texts = {tables: tables_yaml(proposal, out), targeting: targeting_yaml(proposal)}
    out.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    next_commands = _next_commands(proposal, out)
    if as_json:
        print(json.dumps(_to_json(proposal, texts, next_commands), indent=2))
        return
    _print(proposal, list(texts), next_commands)


def _to_json(proposal: "Proposal", texts: dict[Path, str], commands: list[str]) -> dict[str, Any]:
    others = {"log": proposal.log, "embeddings": proposal.embeddings}
    return {
        "files": [str(path) for path in texts],
        "rows": proposal.rows,
        "ads": [
            {"column": each.column, "role": each.role.value, "name": each.name or None}
            | {"reason": each.reason}
            for each in proposal.decisions
        ],
        **{
            name: [asdict(each) | {"name": each.name or None} for each in table.columns]
            for name, table in others.items()
            if table is not None
        },
        "log_lacks": [each.name for each in proposal.log.missing] if proposal.log else [],
        "next": commands,
    }


def _print(proposal: "Proposal", files: list[Path], commands: list[str]) -> None:
    tables, targeting = files
    for path in files:
        print(f"wrote {path}: read it, and change what is wrong")
    if proposal.left_out:
        names = ", ".join(each.column for each in proposal.left_out)
        print(f"LEFT OUT, so these columns limit nobody ({len(proposal.left_out)}): {names}")
        print(f"{targeting} says why, and how to make one a rule")
    if proposal.log is not None and proposal.log.missing:
        names = ", ".join(each.name for each in proposal.log.missing)
        print(f"`log:` in {tables} is a comment: to train, fill in {names} and remove `# `")
    print("\nnext:")
    for command in commands:
        print(f"  {command}")


def _next_commands(proposal: "Proposal", out: Path) -> list[str]:
    from grace.index.proposal.roles import Role
    from grace.index.proposal.yaml_text import CODEBOOK

    folder = shlex.quote(str(out))
    commands, build = [], f"grace build --data {folder} --root {folder}/snapshots"
    if proposal.column_of(Role.SID) is None:
        codes = next(codes for most, codes in _CODES if proposal.rows <= most)
        known = proposal.embeddings is not None
        source = f"--data {folder}" if known else "--embeddings EMBEDDINGS.parquet"
        commands.append(f"grace sids {source} --codes {codes} --out {folder}/{CODEBOOK}")
    elif proposal.vocab_sizes is not None:
        sizes = ",".join(map(str, proposal.vocab_sizes))
        build += f" --sid-space {shlex.quote(out.name or 'ads')} --vocab-sizes {sizes}"
    build += "".join(f" --without {name}" for name in proposal.without)
    commands.append(build)
    if proposal.log is not None and not proposal.log.missing:
        commands.append(f"grace train --data {folder} --out {folder}/model")
        of = f"--snapshots {folder}/snapshots --checkpoint {folder}/model"
        commands.append(f"grace serve {of} --state-dir {folder}/state")
    return commands
