"""`grace verify` and `grace inspect` accept a mutated manifest or print one line.

The digests are right, so the mutations reach every check. A server can load what `verify` accepts.
"""

import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import Result

from grace.index.matchers.modes import MatcherMode
from grace.index.matching.exact import ExactMatcher
from grace.index.storage import load_snapshot
from grace.index.users.user_rows import UserEncoder
from grace.server.observe.metrics import LoopLag, Metrics
from grace.server.server_state import ServerState
from support.forgery import Fields, read_fields, write_fields
from support.in_process import invoke_grace

SHORT, LONG = 12, int(os.environ.get("FUZZ_EXAMPLES", "500"))
MOST_BYTES = 64 << 20
"""A small catalogue takes little memory, whatever its manifest says."""

huge = st.sampled_from([0, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1, 10**30])
texts = st.text(max_size=5) | st.sampled_from(
    ["2026-02-30T12:00:00Z", "\n", "\x1b[31m", "x" * 9999]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | huge | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def mutations(draw: st.DrawFn, fields: Fields) -> None:
    """Replace, remove or repeat one to three values."""
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(list(places(fields))))
        if draw(st.booleans()):
            parent[key] = draw(values)
        elif draw(st.booleans()):
            del parent[key]
        elif isinstance(parent, list):
            parent.insert(key, parent[key])
        else:
            parent[draw(texts)] = parent[key]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Yield every list and mapping, with each of its keys."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    here = [(value, key) for key in keys]
    return [*here, *(place for key in keys for place in places(value[key]))]


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
    Metrics(ServerState(), LoopLag(), torch.device("cpu")).serves(snapshot)
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


UNHURRIED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(UNHURRIED, max_examples=SHORT)
@given(data=st.data())
def test_a_mutated_manifest_is_fine_or_one_line(
    intact_of: dict[MatcherMode, Path],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    check(tmp_path_factory.getbasetemp() / "mutated", intact_of[MatcherMode.UNION], data)


@pytest.mark.soak
@pytest.mark.parametrize("mode", list(MatcherMode))
@settings(UNHURRIED, max_examples=LONG)
@given(data=st.data())
def test_many_mutated_manifests_are_fine_or_one_line(
    intact_of: dict[MatcherMode, Path],
    tmp_path_factory: pytest.TempPathFactory,
    mode: MatcherMode,
    data: st.DataObject,
) -> None:
    check(tmp_path_factory.getbasetemp() / f"mutated-{mode.value}", intact_of[mode], data)
