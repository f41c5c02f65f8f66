"""Write the packages of pyproject.toml as files for pip, one for each stage of the images.

    python3 requirements.py pyproject.toml OUT

project.txt  what the project needs, traces included
gpu.txt      what it also needs on a GPU
nvcc.txt     the compiler of the GPU kernels
"""

import sys
import tomllib
from pathlib import Path


def main(described: Path, out: Path) -> None:
    project = tomllib.loads(described.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    files = {
        "project": [*project["dependencies"], *extras["traces"]],
        "gpu": extras["gpu"],
        "nvcc": extras["nvcc"],
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (out / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
