"""The requests of a load, as a file for our client."""

from pathlib import Path

import pytest

from grace.bench.load.shots import read_shots
from grace.configs.errors import InputError
from grace.proto.retrieval_pb2 import RetrieveRequest


def test_lines_of_json_become_messages(tmp_path: Path) -> None:
    """Only a newline ends a line."""
    path = tmp_path / "requests.jsonl"
    path.write_text('{"request_id": "a\u2028b\x85c"}\r\n\n{}\n', encoding="utf-8")
    first, second = read_shots(path, 0.25)
    assert RetrieveRequest.FromString(first.body).request_id == "a\u2028b\x85c"
    assert (second.body, second.timeout_seconds) == (b"", 0.25)
    with pytest.raises(InputError, match=r"absent\.jsonl: .*grace synth"):
        read_shots(tmp_path / "absent.jsonl", None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{}\n{", "requests.jsonl: not JSON lines"),
        ("", "requests.jsonl: holds no request"),
        ('{}\n{"max_add": 3}', "requests.jsonl:2: .*max_add"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=fault):
        read_shots(path, None)
