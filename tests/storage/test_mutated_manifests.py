"""`grace verify` and `grace inspect` accept a mutated manifest or print one line.

The digests are right, so the mutations reach every check. A server can load what `verify` accepts.
"""

import shutil
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from grace.index.matching.exact import ExactMatcher
from grace.index.storage import load_snapshot
from grace.index.users.user_rows import UserEncoder
from support.forgery import read_fields, write_fields
from support.in_process import invoke_grace
from support.strategies import examples
from support.wrong_snapshots import mutations

MOST_BYTES = 64 << 20
"""A small catalogue takes little memory, whatever its manifest says."""


def assert_ok_or_one_line(done: Result) -> None:
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1)
    if done.exit_code == 1:
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert line.isprintable()
        assert len(line) <= 1100


def assert_can_be_served(version: Path) -> None:
    snapshot = load_snapshot(version)
    ExactMatcher(snapshot, 1)
    UserEncoder(snapshot.schema, snapshot.set_values).read([b""], 16)


def check(folder: Path, intact: Path, data: st.DataObject) -> None:
    shutil.copytree(intact, version := folder / intact.name, dirs_exist_ok=True)
    fields = read_fields(intact)
    data.draw(mutations(fields))
    write_fields(version, fields)
    tracemalloc.start()
    verified = invoke_grace("verify", version, *data.draw(st.sampled_from([[], ["--deep"]])))
    inspected = invoke_grace("inspect", version)
    if verified.exit_code == 0:
        assert_can_be_served(version)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_BYTES
    assert_ok_or_one_line(verified)
    assert_ok_or_one_line(inspected)


@examples(15)
@given(data=st.data())
def test_a_mutated_manifest_is_fine_or_one_line(
    intact: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    check(tmp_path_factory.getbasetemp() / "mutated", intact, data)
