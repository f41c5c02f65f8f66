"""A server that cannot start exits with 2, and one line names key, file and remedy."""

import json
import re
import resource
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.configs.serving import LimitsConfig, ServingConfig
from grace.index.updates.log import UpdateLog
from grace.model.checkpoints.folder import WEIGHTS
from grace.server.engine.serving_pair import require_numbered_ids, require_numbered_places
from grace.server.reload.pin import Pin, PinFile
from grace.server.start_up import OTHER_DESCRIPTORS, require_descriptors, too_little_memory
from support.command import GRACE, plain_environment, run_command
from support.forked import Forked, forked
from support.pipeline_cases import GENERATION
from support.serving_files import ServingFiles
from support.update_calls import update

pytestmark = pytest.mark.subprocess

FAULTS: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_name("start_up_faults.yaml").read_text(encoding="utf-8")
)


def write_faulty(files: ServingFiles, folder: Path) -> None:
    """Write the snapshots and checkpoints that the faults name."""
    shutil.copytree(files.snapshots, folder / "above" / "snapshots")
    shutil.copytree(files.checkpoint, folder / "no-weights")
    (folder / "no-weights" / WEIGHTS).unlink()
    (folder / "bad.jsonl").write_text('{"request_id": "one"}\n{"no_such_field": 1}\n')
    PinFile(folder / "deleted-pin").write(Pin(4711, 4712))
    with updates_log(folder / "damaged-log") as log:
        log.append([update(1, stop={"ad": [7]}).SerializeToString()])
    file = folder / "damaged-log" / "ad_updates" / "log"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def updates_log(state: Path) -> AbstractContextManager[UpdateLog]:
    """Return a server's log of updates, which no other server may use meanwhile."""
    return closing(UpdateLog(state / "ad_updates", lambda message: None))


def filled(sections: Any, folder: Path, port: int) -> Any:
    """The sections with the folder and the taken port in place."""
    if isinstance(sections, Mapping):
        return {name: filled(value, folder, port) for name, value in sections.items()}
    if sections == "PORT":
        return port
    return sections.replace("{}", str(folder)) if isinstance(sections, str) else sections


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


@dataclass(frozen=True)
class End:
    """How a start ended: its exit code, what it wrote to stderr, and the events of its log."""

    code: int
    lines: list[str]
    events: list[str]

    @staticmethod
    def of(process: Forked) -> "End":
        with process.stderr as written:
            lines = written.read().splitlines()
        events = [json.loads(line)["event"] for line in lines if line.startswith("{")]
        return End(process.wait(), [line for line in lines if not line.startswith("{")], events)


@pytest.fixture(scope="module")
def ends(
    serving_files: ServingFiles, taken_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, End]:
    """Return how the start with each fault ended."""
    folder = tmp_path_factory.mktemp("faulty")
    files = replace(serving_files, folder=folder)
    write_faulty(serving_files, folder)
    # These options replace settings of `replaced.yaml`.
    options = ("--snapshots", serving_files.snapshots, "--port", taken_port, "--device", "cpu")
    started = {}
    with updates_log(folder / "in-use"):
        for name, fault in FAULTS.items():
            settings = filled(fault["settings"], folder, taken_port)
            config = files.write_config(f"{name}.yaml", **settings)
            more = options if name == "replaced" else ()
            command = [*map(str, (GRACE, "serve", "--config", config, *more))]
            started[name] = forked(command, plain_environment())
        return {name: End.of(process) for name, process in started.items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_cannot_start_says_why_in_one_line_and_exits_with_2(
    ends: Mapping[str, End], fault: str
) -> None:
    end = ends[fault]
    (line,) = end.lines
    assert end.code == 2
    assert line.startswith("error: ")
    at = 0
    for piece in FAULTS[fault]["line"]:
        assert piece in line[at:], f"{piece!r} in {line!r}"
        at = line.index(piece, at) + len(piece)


def test_an_address_space_that_is_too_small_is_refused_before_a_library_aborts(
    serving_files: ServingFiles,
) -> None:
    config = serving_files.write_config("small.yaml", listen={"front_ends": 2})
    done = run_command("prlimit", f"--as={1100 << 20}", GRACE, "serve", "--config", config)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"error: address space: this process may have 1\.1 GiB \(RLIMIT_AS, `ulimit -v`\) and "
        r"needs at least 2\.0 GiB, 0\.0 of it for snapshot and checkpoint; remove the limit, .*\n",
        done.stderr,
    )


class OutOfResources(Exception):  # noqa: N818, as Triton has it
    pass


SHORTAGES: Mapping[str, tuple[Exception, str | None]] = {
    "cpu": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory\nat"),
        "can't allocate memory",
    ),
    "python": (MemoryError(), "out of memory"),
    "torch": (torch.OutOfMemoryError("CUDA out of memory. Tried to"), "CUDA out of memory. Tried"),
    "cuda": (torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel"), "out of memory"),
    "triton": (OutOfResources("out of resource: shared memory"), "resource: shared memory"),
    "thread": (RuntimeError("can't start new thread"), "can't start new thread"),
    "ours": (RuntimeError("a shape is wrong"), None),
}


@pytest.mark.parametrize(("error", "fault"), SHORTAGES.values(), ids=SHORTAGES)
def test_only_too_little_memory_gets_an_error_that_names_the_settings_to_lower(
    error: Exception, fault: str | None
) -> None:
    shortage = too_little_memory(error, ServingConfig(Path(), Path(), GENERATION))
    if fault is None:
        assert shortage is None
        return
    text = str(shortage)
    assert text.startswith("device cpu: too little memory: ")
    assert fault in text
    assert "a smaller generation.max_batch (now 4), fewer or narrower generation.profiles (" in text
    assert "\n" not in text


def test_descriptors_are_raised_to_what_the_connections_need_or_the_start_is_refused() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        require_descriptors(301)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (301 + OTHER_DESCRIPTORS, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if hard != resource.RLIM_INFINITY:
        refused = f"^limits.connections: {hard} connections need .* may have {hard} .*: raise this"
        with pytest.raises(ConfigError, match=refused):
            require_descriptors(hard)


def test_more_places_than_a_gpu_numbers_are_refused_by_name() -> None:
    wide = GenerationConfig(64, {"wide": BeamProfile((1, 4096), 5)}, "wide")
    sizes = (7, 2**13)
    require_numbered_places(wide, sizes, torch.device("cpu"))
    require_numbered_places(replace(wide, max_batch=63), sizes, torch.device("cuda"))
    with pytest.raises(ConfigError) as caught:
        require_numbered_places(wide, sizes, torch.device("cuda"))
    assert str(caught.value) == (
        "generation.profiles.wide.beams: 64 requests (generation.max_batch) of 4096 beams and 8192 "
        "tokens are 2147483648 places, and a GPU can number 2147483647; give fewer beams or a "
        "smaller max_batch"
    )


def test_more_ids_in_a_batch_than_can_be_numbered_are_refused_by_name() -> None:
    generation = GenerationConfig(max_batch=512, profiles=GENERATION.profiles)
    require_numbered_ids(LimitsConfig(message_bytes=(1 << 21) - 1), generation)
    with pytest.raises(ConfigError, match=r"^limits.message_bytes: 2097152, at most 2097151 with "):
        require_numbered_ids(LimitsConfig(message_bytes=1 << 21), generation)
