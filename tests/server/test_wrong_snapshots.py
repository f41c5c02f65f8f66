"""A server refuses a wrong snapshot in one line that names the file, or serves what it has read.

Each start runs the whole command `grace serve`. `make soak` tries every damage to every file, and
many wrong contents whose digests are right.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.forgery import forge_array, read_array_file, read_fields, write_fields
from support.many_starts import ManyStarts
from support.retrieve_calls import Caller, message
from support.serving_files import ServingFiles
from support.wrong_snapshots import alike, corrupt, damages, mutations

pytestmark = pytest.mark.subprocess

MOST_CHARACTERS = 1000
SNAPSHOT_REMEDY = "; build or publish another version"
QUICK = {
    "max_batch": 1,
    "default_profile": "full",
    "profiles": {"full": {"beams": [1, 9, 9, 9], "num_sids": 9}},
}


@dataclass
class Server:
    """A server that starts again and again, on a copy of the snapshot that tests change."""

    files: ServingFiles
    folder: Path
    starts: ManyStarts
    config: Path = field(init=False)

    def __post_init__(self) -> None:
        sections = {"snapshots": str(self.folder), "generation": QUICK}
        self.config = self.files.write_config("wrong-snapshots.yaml", **sections)
        (self.intact,) = self.files.snapshots.glob("0*")

    @property
    def version(self) -> Path:
        return self.folder / self.intact.name

    def restore(self) -> Path:
        """Return a fresh copy of the version."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.files.snapshots, self.folder)
        for path in self.version.iterdir():
            path.chmod(0o644)
        return self.version

    def refusal(self) -> str | None:
        """Start it; return the one line of its refusal. None if it got ready and answered."""
        started = self.starts.start("--config", self.config, ready=self._use)
        if started.code == 0:
            assert started.lines == []
            return None
        assert started.code == 2
        (line,) = started.lines
        assert line.startswith("error: ")
        assert line.isprintable()
        assert len(line) <= len("error: ") + MOST_CHARACTERS
        assert "; " in line, "it has a remedy"
        assert started.events in ([], ["listening"])
        return line

    def _use(self, address: str) -> None:
        known = set(read_array_file(self.version, "ad_ids.npy").tolist())
        caller = Caller(address)
        for request in self.files.requests[:21]:
            assert known.issuperset(caller.call(message(request)).response.ad_ids)
        caller.close()


@pytest.fixture(scope="module")
def server(
    many_starts: ManyStarts, serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    return Server(serving_files, tmp_path_factory.mktemp("wrong") / "snapshots", many_starts)


def names_one(line: str | None, version: Path, files: tuple[str, ...]) -> bool:
    begins = tuple(f"error: snapshots: {version / file}: " for file in files)
    return line is not None and line.startswith(begins) and line.endswith(SNAPSHOT_REMEDY)


@pytest.mark.parametrize("every", [47, pytest.param(1, marks=pytest.mark.soak)])
def test_any_damage_to_a_file_is_refused_by_its_name(server: Server, every: int) -> None:
    for damage in islice(damages(server.intact), None, None, every):
        damage.do(server.restore())
        line = server.refusal()
        assert names_one(line, server.version, damage.files), line


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_arrays_that_are_swapped_with_right_digests_are_refused_by_name_or_served(
    server: Server, every: int
) -> None:
    refused = 0
    for pair in islice(alike(server.intact), None, None, every):
        version = server.restore()
        for file, other in (pair, pair[::-1]):
            forge_array(version, file, read_array_file(server.intact, other))
        line = server.refusal()
        assert line is None or line.startswith(f"error: snapshots: {version}")
        refused += line is not None
    assert refused


Check = Callable[[Server, st.DataObject], None]


def corrupt_arrays(server: Server, data: st.DataObject) -> None:
    version = server.restore()
    files = sorted(path.name for path in version.glob("*.npy"))
    for file in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True)):
        forge_array(version, file, corrupt(read_array_file(version, file), data))
    line = server.refusal()
    assert line is None or names_one(line, version, tuple(files)), line


def mutated_manifest(server: Server, data: st.DataObject) -> None:
    version = server.restore()
    fields = read_fields(version)
    data.draw(mutations(fields))
    write_fields(version, fields)
    line = server.refusal()
    assert line is None or line.startswith(("error: snapshots: ", "error: checkpoint: ")), line


CHECKS = pytest.mark.parametrize("check", [corrupt_arrays, mutated_manifest])
UNHURRIED = settings(suppress_health_check=list(HealthCheck))


@CHECKS
@settings(UNHURRIED, max_examples=6)
@given(data=st.data())
def test_wrong_contents_with_right_digests_are_refused_in_one_line_or_served(
    server: Server, check: Check, data: st.DataObject
) -> None:
    check(server, data)


@pytest.mark.soak
@CHECKS
@settings(UNHURRIED, max_examples=300)
@given(data=st.data())
def test_many_wrong_contents_with_right_digests_are_refused_in_one_line_or_served(
    server: Server, check: Check, data: st.DataObject
) -> None:
    check(server, data)
