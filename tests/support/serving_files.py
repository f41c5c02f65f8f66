"""The files that a server needs: the tiny catalogue's snapshot, a tiny model, a configuration."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.bench.load.tiny_server import SEED, TINY, TinyServerFiles, write_tiny_server_files
from grace.model.checkpoints.init import load_model_config
from grace.model.definition.t5_spec import EncoderDecoderSpec

__all__ = ["SEED", "ServingFiles", "model_spec", "write_serving_files"]


@dataclass(frozen=True)
class ServingFiles:
    folder: Path
    snapshots: Path
    checkpoint: Path
    requests: tuple[dict[str, Any], ...]  # of the catalogue's users, as JSON
    warm_up: Path  # the same as a file

    @property
    def catalogue(self) -> Path:
        return self.folder / "catalogue"

    @property
    def tiny_server_files(self) -> TinyServerFiles:
        return TinyServerFiles(self.folder, self.snapshots, self.checkpoint, self.warm_up)

    def write_config(self, name: str = "serve.yaml", **sections: Mapping[str, Any] | Any) -> Path:
        """A configuration on free ports; `sections` are merged over it, section by section."""
        logs = {"requests": True, **sections.pop("logs", {})}
        # Every start and every load computes each size of a batch up to this one.
        generation = {"max_batch": 4, **sections.pop("generation", {})}
        given = {"logs": logs, "generation": generation, "warm_up": None, **sections}
        return self.tiny_server_files.write_config(name, **given)


def write_serving_files(folder: Path) -> ServingFiles:
    written = write_tiny_server_files(folder)
    lines = written.requests.read_text(encoding="utf-8").splitlines()
    requests = tuple(map(json.loads, lines))
    return ServingFiles(folder, written.snapshots, written.checkpoint, requests, written.requests)


def model_spec() -> EncoderDecoderSpec:
    spec = load_model_config(TINY).model
    assert isinstance(spec, EncoderDecoderSpec)
    return spec
