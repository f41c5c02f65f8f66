"""Run the blocks of documents, and write their outputs into the documents.

    python -m support.run_documents build/real docs/real-data.md docs/tour.md

A block without a language shows the output of the block before it.
"""

import re
import subprocess
import sys
from pathlib import Path
from shlex import quote

from support.documents import BEGINNING, Block

_LINES = r"((?:(?!```).*\n)*)```\n"
_BLOCK = re.compile(rf"^```(\w+) *(.*)\n{_LINES}(?:\n```\n{_LINES})?", re.MULTILINE)


def rerun(page: Path, folder: Path) -> str:
    """Run all blocks in one shell, and return the page with their outputs."""
    text, script = page.read_text(), BEGINNING
    blocks = [*_BLOCK.finditer(text)]
    for found in blocks:
        block = Block(*found.group(1, 2, 3))
        script += f"printf '\\0'; printf '%d s: %s\\n' $SECONDS {quote(block.text)} >&2\n"
        script += block.command
    command = ["bash", "-eo", "pipefail", "-c", f"{script}\nstop"]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    for found, said in reversed([*zip(blocks, done.stdout.split("\0")[1:], strict=True)]):
        if found[4] is not None:
            shown = re.sub(" +\n", "\n", said).strip("\n")
            text = f"{text[: found.start(4)]}{shown}\n{text[found.end(4) :]}"
    return text


if __name__ == "__main__":
    pages = {Path(name): rerun(Path(name), Path(sys.argv[1])) for name in sys.argv[2:]}
    for path, content in pages.items():
        path.write_text(content)
