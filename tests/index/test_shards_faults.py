"""Faults between the steps of a build in shards: full disks, damage, other builds and users."""

import os
import resource
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from grace.configs.errors import InputError, SnapshotError
from grace.index.builder import BuildSpec, Sharding, build
from grace.index.builder.sharding.scratch import SCRATCH, scratch_folder
from grace.index.builder.sharding.tasks import ShardTask
from grace.index.storage import versions
from support.builds import build_spec, silent
from support.strategies import Case, random_ads, random_schema

NOBODY = 65534


@pytest.fixture
def spec(tmp_path: Path) -> BuildSpec:
    rng = np.random.default_rng(7)
    schema = random_schema(rng, (3, 65), num_sets=1)
    case = Case(schema, (63, 5, 3), tuple(random_ads(rng, schema, (63, 5, 3), 2222)), ())
    return build_spec(tmp_path, case, root=tmp_path / "root", batch_rows=63)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to write more into any file, as it does where a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_reported_in_one_line_with_the_task_and_the_folder(
    tmp_path: Path, spec: BuildSpec
) -> None:
    own = tmp_path / "own"
    steps = set()
    for size in (300, 6000, 16000):
        with pytest.raises(InputError) as caught, files_of_at_most(size):
            build(spec, silent, sharding=Sharding(2, scratch=own, run_rows=333))
        message = str(caught.value)
        assert f"{own}: " in message
        assert "free some space there, or name another folder with --scratch" in message
        assert "another root" not in message
        assert "\n" not in message
        assert not list(own.iterdir())
        steps.add(message.partition(" ")[0])
    assert steps == {"reading", "building", "merging"}
    assert not spec.root.exists()


def test_a_shard_damaged_between_the_steps_is_caught_by_its_digests(spec: BuildSpec) -> None:
    def damaging(
        function: Callable[[Any], Any], tasks: Sequence[Any], /
    ) -> Generator[Any, None, None]:
        for task in tasks:
            result = function(task)
            if isinstance(task, ShardTask) and task is tasks[-1]:
                (file,) = task.inputs.scratch.glob(f"shard-{task.first_token:05d}-*/0*1/ad_ids.npy")
                content = bytearray(file.read_bytes())
                content[-8] ^= 1
                file.write_bytes(content)
            yield result

    with pytest.raises(SnapshotError, match=r"ad_ids\.npy: damaged: its digest is"):
        build(spec, silent, sharding=Sharding(3, run=damaging))
    assert versions(spec.root) == ()


@pytest.mark.parametrize("threads", [0, 1025])
def test_threads_beyond_reason_are_refused_by_either_build(spec: BuildSpec, threads: int) -> None:
    spec = replace(spec, threads=threads)
    with pytest.raises(InputError, match=f"--threads {threads}: give 1 to 1024"):
        build(spec, silent)
    with pytest.raises(InputError, match=f"--threads {threads}: give 1 to 1024"):
        build(spec, silent, sharding=Sharding(3))


@contextmanager
def another_user() -> Iterator[None]:
    """Root may read everything, so it becomes another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_other_users_leftovers_and_locks_in_a_shared_scratch_do_not_block() -> None:
    with TemporaryDirectory() as parent:
        shared = Path(parent)
        shared.chmod(0o1777)
        (shared / ".lock").touch(0o400)
        closed, locked = shared / f"{SCRATCH}closed", shared / f"{SCRATCH}locked"
        for folder in (closed, locked):
            folder.mkdir(0o755)
            (folder / "in-use").touch(0o400)
        closed.chmod(0)
        with another_user():
            if not os.access(shared, os.W_OK, effective_ids=True):
                pytest.skip("another user sees nothing of the folder for temporary files")
            with scratch_folder(shared) as made:
                (made / "file").write_text("ours")
            assert not made.exists()
        assert closed.exists()
        assert locked.exists()
        closed.chmod(0o700)


def test_a_scratch_beside_the_root_gets_no_lock_of_writers(tmp_path: Path, spec: BuildSpec) -> None:
    own = tmp_path / "own"
    build(spec, silent, sharding=Sharding(3, scratch=own))
    assert not list(own.iterdir())
