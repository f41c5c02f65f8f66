"""The requests of a load, as files for our client and for ghz."""

import json
from pathlib import Path

import pytest

from grace.bench.load.shots import read_shots, write_ghz_data, write_wire
from grace.catalogues.synth import Written, preset_spec, write_folder
from grace.configs.errors import InputError
from grace.proto.retrieval_pb2 import RetrieveRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    out = tmp_path_factory.mktemp("synth")
    return out, write_folder(preset_spec("small", sids=1111), out)


def test_synthetic_requests_become_the_messages_they_describe(
    folder: tuple[Path, Written],
) -> None:
    path = folder[0] / "requests.jsonl"
    shots = read_shots(path, 0.25)
    assert len(shots) == folder[1].requests
    first = json.loads(path.read_text().splitlines()[0])
    message = RetrieveRequest.FromString(shots[0].body)
    assert message.request_id == first["request_id"]
    assert {name: list(values.values) for name, values in message.user.items()} == {
        name: values["values"] for name, values in first["user"].items()
    }
    assert {shot.timeout_seconds for shot in shots} == {0.25}


def test_ghz_gets_the_same_requests_as_one_array(
    folder: tuple[Path, Written], tmp_path: Path
) -> None:
    path, out = folder[0] / "requests.jsonl", tmp_path / "ghz.json"
    write_ghz_data(path, out)
    assert json.loads(out.read_text()) == [json.loads(x) for x in path.read_text().splitlines()]


def test_a_request_that_ghz_would_read_as_a_template_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"request_id": "{{.RequestNumber}}"}\n')
    with pytest.raises(InputError, match="template"):
        write_ghz_data(path, tmp_path / "ghz.json")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{}\n{", "requests.jsonl:2: not JSON"),
        ("[1]", "requests.jsonl:1: must be a JSON object"),
        ("", "requests.jsonl: holds no request"),
        ('{}\n{"max_add": 3}', "requests.jsonl:2: .*max_add"),
        ('{"max_ads": -1}', "requests.jsonl:1: "),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=fault):
        read_shots(path, None)


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"request_id": "a\u2028b\x85c"}\r\n\n{}\n', encoding="utf-8")
    first, second = read_shots(path, None)
    assert RetrieveRequest.FromString(first.body).request_id == "a\u2028b\x85c"
    assert second.body == b""


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.jsonl: .*grace synth"):
        read_shots(tmp_path / "absent.jsonl", None)


def test_a_wire_file_gives_back_its_requests(tmp_path: Path) -> None:
    bodies = [b"", b"a" * 70_001, bytes(range(256))]
    write_wire(bodies, tmp_path / "r.wire")
    shots = read_shots(tmp_path / "r.wire", 0.5)
    assert [shot.body for shot in shots] == bodies
    assert {shot.timeout_seconds for shot in shots} == {0.5}


@pytest.mark.parametrize(
    ("cut", "fault"), [(0, "holds no request"), (3, "within request 1"), (90, "within request 2")]
)
def test_a_truncated_wire_file_is_refused_with_the_place(
    tmp_path: Path, cut: int, fault: str
) -> None:
    path = tmp_path / "r.wire"
    write_wire([b"x" * 63, b"y" * 63], path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=fault):
        read_shots(path, None)
