"""Pin the packages of the images, each with the hashes of its files: `make lock`.

    python requirements.py UV pyproject.toml OUT

project.txt  what a light installation and its build need
serve.txt    what the extra `serve` adds, without torch
torch.txt    torch for CUDA, as PyPI has it, with its libraries, and Triton
nvcc.txt     the compiler of the GPU kernels, of the CUDA version of that torch
"""

import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

OF_TORCH = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")


def locked(uv: str, wanted: Sequence[str]) -> list[str]:
    """Return a pinned requirement, with its hashes, for each package that `wanted` needs."""
    command = [uv, "pip", "compile", "--universal", "--python-version", "3.11", "--quiet"]
    command += ["--generate-hashes", "--no-annotate", "--no-header", "-"]
    text = "\n".join(wanted)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {done.stderr.strip()}")
    return re.split(r"\n(?! )", done.stdout.strip())


def name_of(requirement: str) -> str:
    return requirement.partition("==")[0]


def wanted(described: Path) -> dict[str, list[str]]:
    """Return what the project, its server, and the build of its kernels need."""
    content = tomllib.loads(described.read_text(encoding="utf-8"))
    extras = content["project"]["optional-dependencies"]
    return {
        "light": [*content["build-system"]["requires"], *content["project"]["dependencies"]],
        "serving": [*extras["serve"], *(line for line in extras["gpu"] if "[" not in line)],
        "compiler": extras["nvcc"],
    }


def head_of(lines: Mapping[str, Sequence[str]]) -> str:
    """Return the first line of each file, which says what it was made for."""
    digest = hashlib.sha256(repr(lines).encode()).hexdigest()[:16]
    return f"# Written by make lock, for the dependencies {digest}."


def main(uv: str, described: Path, out: Path) -> None:
    needed = wanted(described)
    found = locked(uv, [*needed["light"], *needed["serving"]])
    names = set(map(name_of, locked(uv, needed["light"])))
    rest = [each for each in found if name_of(each) not in names]
    (cuda,) = re.findall(r"^cuda-toolkit==(\d+\.\d+)", "\n".join(found), re.MULTILINE)
    files = {
        "project": [each for each in found if name_of(each) in names],
        "serve": [each for each in rest if not OF_TORCH.match(each)],
        "torch": [each for each in rest if OF_TORCH.match(each)],
        "nvcc": locked(uv, [line.replace(">=13", f"=={cuda}.*") for line in needed["compiler"]]),
    }
    for name, lines in files.items():
        text = "".join(f"{line}\n" for line in (head_of(needed), *lines))
        (out / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
