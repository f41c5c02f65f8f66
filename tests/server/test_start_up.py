"""What keeps a server from starting: exit code 2, and one line that names key, file and remedy."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from configs.errors import ConfigError, DeviceError, InputError
from configs.serving import ServingConfig
from model.checkpoint import WEIGHTS
from model.init import write_random
from server.life_cycle import SWITCH_SECONDS
from server.service_times import ServiceTimes
from server.stages import STAGES
from server.start_up import load_and_warm_up, require_device, require_folder_of
from support.command import plain_environment, run_grace
from support.pipeline_cases import GENERATION
from support.serving_files import ServingFiles, model_spec

pytestmark = pytest.mark.subprocess

STARTS = """
import sys
from pathlib import Path
from configs.serving import load_serving_config
from server.life_cycle import serve

for line in sys.stdin.read().splitlines():
    code = serve(load_serving_config(Path(line)))
    switch = sys.getswitchinterval()
    print(f"end {Path(line).stem} {code} {switch}", file=sys.stderr, flush=True)
"""

# What the one line must say, piece after piece.
FAULTS: Mapping[str, tuple[str, ...]] = {
    "no-snapshots": ("snapshots: ", "nowhere", ";"),
    "damaged": ("snapshots: ", "damaged/", "; build or publish another version"),
    "no-checkpoint": ("checkpoint: ", "nowhere", "expected a folder with model.yaml"),
    "no-weights": ("checkpoint: ", WEIGHTS, "missing", ";"),
    "other-space": ("checkpoint: ", "model.yaml", "sid_space", "other-1", "; load a checkpoint"),
    "steps": ("generation.profiles.short.beams: 3 steps", ";"),
    "no-such-device": ("device 'abacus'", "; use cpu"),
    "no-gpu": ("device cuda:63", "; use device cpu"),
    "precision": ("precision: bf16 needs a GPU; on device cpu use fp32",),
    "no-warm-up": ("warm_up: ", "nowhere.jsonl", "cannot be read"),
    "bad-warm-up": ("warm_up: ", "bad.jsonl: line 2", "no_such_field"),
    "taken": ("listen: 127.0.0.1:", "address already in use; choose", "listen.port"),
    "taken-relays": ("listen: 127.0.0.1:", "address already in use; choose", "listen.port"),
    "taken-admin": ("admin: 127.0.0.1:", "address already in use; choose", "admin.port"),
    "taken-metrics": ("metrics: 127.0.0.1:", "address already in use; choose", "metrics.port"),
    "same": ("admin: 127.0.0.1:", " is the address of listen as well; choose", "admin.port"),
    "no-name": (
        "listen: ééé",
        ":0: not a host name; choose another listen.host",
    ),
    "no-page-name": ("metrics: a..b:0: not a host name; choose another metrics.host",),
    "no-name-relays": ("listen: a..b:0: not a host name; choose another listen.host",),
    "not-here-relays": ("listen: 203.0.113.7:0: cannot assign requested address; choose",),
    "not-here": ("listen: 203.0.113.7:0: cannot assign requested address; choose",),
}


def faulty_sections(files: ServingFiles, folder: Path, port: int) -> dict[str, dict[str, Any]]:
    """By fault: what of the configuration makes it."""
    nowhere = folder / "nowhere"
    damaged, no_weights, other = folder / "damaged", folder / "no-weights", folder / "other"
    shutil.copytree(files.snapshots, damaged)
    (array,) = damaged.glob("*/ad_ids.npy")
    array.chmod(0o644)
    array.write_bytes(array.read_bytes()[:-8])
    shutil.copytree(files.checkpoint, no_weights)
    (no_weights / WEIGHTS).unlink()
    write_random(replace(model_spec(), sid_space="other-1"), other, 1, torch.float32)
    warm_up = folder / "bad.jsonl"
    warm_up.write_text('{"request_id": "one"}\n{"no_such_field": 1}\n', encoding="utf-8")
    short = {"short": {"beams": [1, 4, 4], "num_sids": 4}}
    return {
        "no-snapshots": {"snapshots": str(nowhere)},
        "damaged": {"snapshots": str(damaged)},
        "no-checkpoint": {"checkpoint": str(nowhere)},
        "no-weights": {"checkpoint": str(no_weights)},
        "other-space": {"checkpoint": str(other)},
        "steps": {"generation": {"default_profile": "short", "profiles": short}},
        "no-such-device": {"device": "abacus"},
        "no-gpu": {"device": "cuda:63"},
        "precision": {"precision": "bf16"},
        "no-warm-up": {"warm_up": str(folder / "nowhere.jsonl")},
        "bad-warm-up": {"warm_up": str(warm_up)},
        "taken": {"listen": {"port": port}},
        "taken-relays": {"listen": {"port": port, "front_ends": 2}},
        "taken-admin": {"admin": {"port": port}},
        "taken-metrics": {"metrics": {"port": port}},
        "same": {"listen": {"port": port}, "admin": {"port": port}},
        "no-name": {"listen": {"host": "é" * 70 + ".com"}},
        "no-page-name": {"metrics": {"host": "a..b"}},
        "no-name-relays": {"listen": {"host": "a..b", "front_ends": 2}},
        "not-here-relays": {"listen": {"host": "203.0.113.7", "front_ends": 2}},
        "not-here": {"listen": {"host": "203.0.113.7"}},
    }


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def starts(
    serving_files: ServingFiles, taken_port: int, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, list[str]]]:
    """By fault: exit code and lines on stderr. One process for all: most of a start is imports."""
    folder = tmp_path_factory.mktemp("faulty")
    files = replace(serving_files, folder=folder)
    sections = faulty_sections(files, folder, taken_port)
    configs = [files.write_config(f"{name}.yaml", **each) for name, each in sections.items()]
    done = subprocess.run(
        [sys.executable, "-c", STARTS],
        input="\n".join(map(str, configs)),
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    ends: dict[str, tuple[int, list[str]]] = {}
    lines: list[str] = []
    for line in done.stderr.splitlines():
        if line.startswith("end "):
            _, name, code, switch = line.split()
            assert float(switch) == SWITCH_SECONDS
            ends[name] = (int(code), lines)
            lines = []
        else:
            lines.append(line)
    return ends


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_cannot_start_says_why_in_one_line_and_exits_with_2(
    starts: dict[str, tuple[int, list[str]]], fault: str
) -> None:
    code, lines = starts[fault]
    (line,) = [line for line in lines if not line.startswith('{"time"')]
    assert code == 2
    assert line.startswith("error: ")
    at = 0
    for piece in FAULTS[fault]:
        assert piece in line[at:], f"{piece!r} in {line!r}"
        at = line.index(piece, at) + len(piece)
    assert not any('"ready"' in line for line in lines)


def test_a_fault_that_is_known_at_once_is_told_before_anything_listens(
    starts: dict[str, tuple[int, list[str]]],
) -> None:
    for fault in ("no-such-device", "no-gpu", "no-warm-up", "bad-warm-up", "taken", "taken-relays"):
        assert not any('"listening"' in line for line in starts[fault][1])


def test_what_loads_has_its_ports_already(starts: dict[str, tuple[int, list[str]]]) -> None:
    assert any('"listening"' in line for line in starts["damaged"][1])


def test_the_command_line_replaces_what_the_file_says(
    serving_files: ServingFiles, taken_port: int
) -> None:
    config = serving_files.write_config("replaced.yaml", snapshots="nowhere")
    command = ("serve", "--config", config, "--snapshots", serving_files.snapshots)
    done = run_grace(*command, "--port", str(taken_port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: listen: 127.0.0.1:{taken_port}: address already in use")
    assert len(done.stderr.splitlines()) == 1


def test_a_timeline_that_could_not_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    require_folder_of(None)
    require_folder_of(tmp_path / "trace.json")
    with pytest.raises(InputError, match="its folder does not exist"):
        require_folder_of(tmp_path / "nowhere" / "trace.json")


def test_an_unknown_setting_is_an_error_of_the_command(serving_files: ServingFiles) -> None:
    config = serving_files.write_config("unknown.yaml", listen={"prot": 1})
    done = run_grace("serve", "--config", config)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {config}")
    assert "unknown key 'prot'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["", "abacus", "cuda:x", "meta", "cpu:nine"])
def test_only_a_device_that_can_be_computed_on_is_taken(name: str) -> None:
    assert require_device("cpu") == torch.device("cpu")
    with pytest.raises(DeviceError, match="device"):
        require_device(name)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory\nat"), "can't allocate memory"),
        (MemoryError("Unable to allocate 63 GiB"), "Unable to allocate 63 GiB"),
        (RuntimeError("a shape is wrong"), None),
    ],
)
def test_what_does_not_fit_into_memory_is_the_users_to_mend_and_other_faults_are_ours(
    error: Exception, told: str | None
) -> None:
    config = ServingConfig(Path(), Path(), GENERATION)
    times = ServiceTimes()
    with (
        patch("server.start_up.load_pair", side_effect=error),
        pytest.raises(ConfigError if told else RuntimeError) as caught,
    ):
        load_and_warm_up(config, torch.device("cpu"), STAGES, times, ())
    if told:
        text = str(caught.value)
        assert text.startswith("device cpu: snapshot and checkpoint do not fit into memory: ")
        assert told in text
        assert "\n" not in text
    else:
        assert caught.value is error


EARLY = """
import os, signal, sys
from pathlib import Path
from configs.serving import load_serving_config
from server import life_cycle

def stop_and_go_on(config):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)

life_cycle.require_distinct_addresses = stop_and_go_on
sys.exit(life_cycle.serve(load_serving_config(Path(sys.argv[1]))))
"""


def test_a_signal_before_anything_listens_is_heeded_as_any_other(
    serving_files: ServingFiles,
) -> None:
    config = serving_files.write_config("early.yaml")
    done = subprocess.run(
        [sys.executable, "-c", EARLY, str(config)],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert events == ["listening", "draining", "stopped"]
