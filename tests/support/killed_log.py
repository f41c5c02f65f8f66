"""Kill a writer of the log of updates at every one of its file-system calls.

    python killed_log.py FOLDER

Again and again a forked child opens the log, appends updates, acknowledges each over a pipe, lets
the log be rewritten, and dies by SIGKILL in its N-th call, N = 1, 2, ... until it gets through.
After each death the next start must find every acknowledged update, at most one more group than
that, and be able to go on. It prints, as JSON, how many deaths there were.
"""

import itertools
import json
import os
import shutil
import sys
from pathlib import Path

from grace.index.updates.log import UpdateLog
from grace.index.updates.state import UpdateState
from grace.index.updates.update import read_kept
from grace.proto.retrieval_pb2 import Ids, UpdateAdsRequest
from support.killed_writer import die_in_call

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


def killed_in_call(folder: Path, number: int) -> tuple[bool, int]:
    """Return whether the writer died, and the last update that it had acknowledged."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        die_in_call(number)
        append_groups(folder, theirs)
        os._exit(0)
    os.close(theirs)
    _, status = os.waitpid(child, 0)
    acknowledged = max(os.read(ours, 4096), default=0)
    os.close(ours)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"the writer failed by itself at call {number}")
    return os.WIFSIGNALED(status), acknowledged


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
    more = 0
    for number in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        died, acknowledged = killed_in_call(folder, number)
        more += check(folder, acknowledged)
        if not died:
            assert acknowledged == GROUPS * OF_A_GROUP
            break
    print(json.dumps({"deaths": number - 1, "kept_unacknowledged": more}))


real_write = os.write

if __name__ == "__main__":
    main(Path(sys.argv[1]))
