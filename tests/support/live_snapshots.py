"""A snapshot root that changes while a server follows it, and the plain answers of its versions."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from grace.index.storage import publish
from grace.index.storage.folder import version_name
from grace.index.storage.versions import versions
from grace.proto.retrieval_pb2 import RetrieveResponse
from support.fast_serving import assert_same_answers, half_of_the_ads, whole
from support.forgery import forge_manifest
from support.serving_files import ServingFiles
from support.stage_cases import GENERATION, answer, load_cpu_pair, replies_of, request_batch

ASKED = 7
"""The number of different requests."""


@dataclass(frozen=True)
class LiveRoot:
    """Version 1 has all ads of the tiny catalogue, version 2 every other one."""

    root: Path
    files: ServingFiles

    @staticmethod
    def write(folder: Path, files: ServingFiles) -> "LiveRoot":
        """Publish version 1 of two."""
        root = folder / "live"
        shutil.copytree(files.snapshots, root)
        shutil.copytree(half_of_the_ads(files) / version_name(2), root / version_name(2))
        publish(root, 1)
        return LiveRoot(root, files)

    def publish(self, version: int) -> None:
        publish(self.root, version)

    def folder(self, version: int) -> Path:
        return self.root / version_name(version)

    def add(self, like: int, **facts: Any) -> int:
        """Add a version with the ads of another one, unpublished; return its number.

        facts  fields of its manifest
        """
        version = versions(self.root)[-1] + 1
        shutil.copytree(self.folder(like), self.folder(version))
        forge_manifest(
            self.folder(version),
            lambda fields: fields.update(version=version_name(version), **facts),
        )
        return version

    def write_config(self, name: str, **sections: Any) -> Path:
        config = {"snapshots": str(self.root), "watch_seconds": 0.1, **sections}
        return self.files.write_config(name, **config)

    @cached_property
    def requests(self) -> Sequence[dict[str, object]]:
        """Requests with all of their ads; their ids are r0, r1, ..."""
        some = self.files.requests[:ASKED]
        profiles = list(GENERATION.profiles)
        return [whole(each, f"r{i}", profiles[i % 2]) for i, each in enumerate(some)]

    def expected(self, *wanted: int) -> Mapping[tuple[str, int], RetrieveResponse]:
        """Return the plain replies to all requests on these versions, by request id and version."""
        found = {}
        for version in wanted:
            pair = load_cpu_pair(self.folder(version), self.files.checkpoint)
            for request in self.requests:
                batch = request_batch(pair, [request], 1, str(request["profile"]))
                ((name, reply),) = replies_of(answer(batch)).items()
                found[name, reply.snapshot_version] = reply
        return found


def assert_plain(
    reply: RetrieveResponse, expected: Mapping[tuple[str, int], RetrieveResponse]
) -> None:
    """The reply is the plain one of the version that it names."""
    assert_same_answers(reply, expected[reply.request_id, reply.snapshot_version])
