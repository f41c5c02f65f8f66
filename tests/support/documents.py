"""The fenced blocks of README and docs, as a reader takes them.

```sh                     is run
```sh not run: REASON     cannot be run here, for one of the reasons in NOT_RUN
```sh hourly.sh           is the content of a file, as is ```json request.json
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

NOT_RUN = (
    "builds or runs images",
    "downloads the data",
    "installs the project",
    "is in quickstart.md",
    "measures the machine",
    "needs a GPU",
    "needs a cluster",
    "needs ghz",
    "needs compilers of other languages",
    "needs a server with TLS",
    "needs several machines",
    "needs your tables",
    "runs until you end it",
    "takes an hour",
    "takes minutes",
)

BEGINNING = """
stop() { for job in $(jobs -p); do kill "$job"; wait "$job"; done; }
trap 'code=$?; trap - EXIT; stop; exit $code' EXIT
"""

_BLOCK = re.compile(r"^( *)```(\w+) *([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    note: str  # what follows the language
    text: str

    @property
    def not_run(self) -> str | None:
        before, found, reason = self.note.partition("not run: ")
        return reason if found and not before else None

    @property
    def file(self) -> str | None:
        return self.note if self.note and self.not_run is None else None

    @property
    def command(self) -> str:
        """The lines of a shell script that run the block or write its file."""
        program = f"cat >{self.file}" if self.file else "python"
        runs = self.language == "sh" and not self.file
        return self.text if runs else f"{program} <<'END'\n{self.text}END\n"


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks that name a language, those in lists included."""
    yield from _blocks_in(page.read_text(encoding="utf-8"))


def _blocks_in(text: str) -> Iterator[Block]:
    for _, language, note, content in _BLOCK.findall(text):
        yield Block(language, note.strip(), dedent(content))


def sections_of(page: Path) -> dict[str, list[Block]]:
    """Return the blocks below each heading of the second level."""
    _, *sections = page.read_text(encoding="utf-8").split("\n## ")
    return {each.partition("\n")[0]: [*_blocks_in(each)] for each in sections}


def the_block(page: Path, language: str, holds: str = "") -> str:
    """Return the only block of this language that has a text in it."""
    (found,) = (x.text for x in blocks_of(page) if x.language == language and holds in x.text)
    return found


def the_file(page: Path, name: str) -> str:
    """Return the content that the page gives a file of this name."""
    (found,) = (block.text for block in blocks_of(page) if block.file == name)
    return found


def pages_in_order(repository: Path) -> list[Path]:
    """Return the README, then the documents in the order of their index, then all others."""
    docs = repository / "docs"
    index = docs / "README.md"
    text = index.read_text(encoding="utf-8")
    listed = [docs / name for name in re.findall(r"^\| \[([^]/]+\.md)\]", text, re.MULTILINE)]
    others = sorted(set(docs.glob("*.md")) - {index})
    return list(dict.fromkeys([repository / "README.md", *listed, *others]))
