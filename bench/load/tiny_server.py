"""The server that loads are measured on: the tiny catalogue and a tiny model.

    python -m grace.bench.load.tiny_server --rate 100 200 --out build/load
    python -m grace.bench.load.tiny_server --model bench/load/causal.yaml --device cuda:0 \\
      --precision fp8 --in-flight 1

starts it, and loads it as `grace.bench.load` does, with all options but --address and --data. The
model is as small as possible, so that a load measures the service rather than the model. --model
names a file with another model and its beams.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grace import configs
from grace.bench.load.__main__ import main as load
from grace.bench.load.options import run_command
from grace.bench.running_server import RunningServer, write_server_config
from grace.catalogues.synth import preset_spec, write_folder
from grace.index.builder import BuildSpec, build
from grace.index.tables.data_folder import read_data_folder
from grace.model.checkpoints.init import load_model_config, write_random

TINY = Path(configs.__file__).parent / "tiny.yaml"
SEED = 1


@dataclass(frozen=True, slots=True)
class TinyServerFiles:
    folder: Path
    snapshots: Path
    checkpoint: Path
    requests: Path  # JSON lines
    profiles: Path = TINY

    def write_config(self, name: str, **sections: Any) -> Path:
        """Write a configuration on free ports; `sections` replace defaults, section by section."""
        return write_server_config(
            *(self.folder / name, self.snapshots, self.checkpoint, self.profiles),
            **{"warm_up": str(self.requests), **sections},
        )


def write_tiny_server_files(folder: Path, model: Path = TINY) -> TinyServerFiles:
    catalogue, snapshots, checkpoint = (
        folder / name for name in ("catalogue", "snapshots", "checkpoint")
    )
    write_folder(preset_spec("tiny", seed=SEED), catalogue)
    spec = BuildSpec(read_data_folder(catalogue), snapshots)
    build(spec, lambda step, done, total: None)
    dtype = torch.float32 if model == TINY else torch.bfloat16
    write_random(load_model_config(model).model, checkpoint, SEED, dtype)
    return TinyServerFiles(folder, snapshots, checkpoint, catalogue / "requests.jsonl", model)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="auto")
    own, others = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = write_tiny_server_files(Path(folder), own.model)
        config = files.write_config("serve.yaml", device=own.device, precision=own.precision)
        with RunningServer(config, files.folder / "server.log") as server:
            print(f"a server of the tiny catalogue listens at {server.address}", flush=True)
            address = ("--address", server.address, "--data", str(files.requests))
            return load([*address, *others])


if __name__ == "__main__":
    run_command(main)
