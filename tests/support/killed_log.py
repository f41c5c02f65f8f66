"""Kill a writer of the log of updates at every one of its file-system calls.

    python killed_log.py FOLDER

Each writer opens the log, appends updates, acknowledges each over a pipe, and lets the log be
rewritten. After its death the next start must find every acknowledged update, at most one more
group than that, and be able to go on. The program prints, as JSON, how many deaths there were.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from grace.index.updates.log import UpdateLog
from grace.index.updates.state import UpdateState
from grace.index.updates.update import read_kept
from grace.proto.retrieval_pb2 import Ids, UpdateAdsRequest
from support.killed import deaths_of

GROUPS = 4
OF_A_GROUP = 2


def opened(folder: Path) -> tuple[UpdateLog, UpdateState]:
    state = UpdateState()
    return UpdateLog(folder, lambda message: require(state.apply(read_kept(message)))), state


def stop(number: int) -> bytes:
    """Return the update of that number, which stops the ad of that id."""
    stopped = {"ad": Ids(ids=[number])}
    kind = UpdateAdsRequest.KIND_DELTA
    return UpdateAdsRequest(sequence=number, kind=kind, stop=stopped).SerializeToString()


def require(applied: bool) -> None:
    assert applied, "an update is in the log twice"


def append_groups(folder: Path, acknowledge: int) -> None:
    log, state = opened(folder)
    for _ in range(GROUPS):
        first = state.sequence + 1
        updates = [stop(number) for number in range(first, first + OF_A_GROUP)]
        log.append(updates)
        for each in updates:
            state.apply(read_kept(each))
        real_write(acknowledge, bytes([state.sequence]))
        if state.sequence >= 2 * OF_A_GROUP:
            log.rewrite(state.full_message())
    log.close()


def check(folder: Path, acknowledged: int) -> int:
    log, state = opened(folder)
    found = state.sequence
    assert acknowledged <= found <= acknowledged + OF_A_GROUP, (acknowledged, found)
    assert found % OF_A_GROUP == 0, found  # a group is there as a whole, or not at all
    ids = state.stopped["ad"].sorted_ids().tolist() if found else []
    assert ids == list(range(1, found + 1)), ids
    log.append([stop(found + 1)])
    log.close()
    log, state = opened(folder)
    assert state.sequence == found + 1
    log.close()
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "log"]
    return found - acknowledged


def main(folder: Path) -> None:
    # A kill, unlike a power cut, loses nothing that was written: to sync would only take time.
    os.__dict__["fsync"] = lambda _: None
    acknowledged, more = [], 0

    def prepare() -> tuple[int, int]:
        shutil.rmtree(folder, ignore_errors=True)
        return os.pipe()

    def check_all(pipe: tuple[int, int]) -> None:
        nonlocal more
        ours, theirs = pipe
        os.close(theirs)
        acknowledged.append(max(os.read(ours, 4096), default=0))
        os.close(ours)
        more += check(folder, acknowledged[-1])

    deaths = deaths_of(prepare, lambda pipe: append_groups(folder, pipe[1]), check_all)
    assert acknowledged[-1] == GROUPS * OF_A_GROUP
    print(json.dumps({"deaths": deaths, "kept_unacknowledged": more}))


real_write = os.write

if __name__ == "__main__":
    main(Path(sys.argv[1]))
