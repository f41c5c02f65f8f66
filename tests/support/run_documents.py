"""Run the blocks of documents, and write what they print into the documents.

    python -m support.run_documents build/real docs/real-data.md docs/tour.md

A block without a language shows what the block before it printed.
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
    """Run all blocks in one shell, and return the page with what they printed."""
    text, script = page.read_text(), BEGINNING
    blocks = list(enumerate(_BLOCK.finditer(text)))
    for number, found in blocks:
        block = Block(*found.group(1, 2, 3))
        script += f"exec >{number}.out; printf '%d s: %s\\n' $SECONDS {quote(block.text)} >&2\n"
        script += block.command
    subprocess.run(["bash", "-eo", "pipefail", "-c", f"{script}\nstop"], cwd=folder, check=True)
    for number, found in reversed(blocks):
        if found[4] is not None:
            said = re.sub(" +\n", "\n", (folder / f"{number}.out").read_text()).strip("\n")
            text = f"{text[: found.start(4)]}{said}\n{text[found.end(4) :]}"
    return text


if __name__ == "__main__":
    pages = {Path(name): rerun(Path(name), Path(sys.argv[1])) for name in sys.argv[2:]}
    for path, content in pages.items():
        path.write_text(content)
