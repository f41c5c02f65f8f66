"""A container of an image that buildah holds, run by the kernel's own tools: no engine is needed.

It has its own mounts, processes and network. The root, /dev and /tmp are read-only, the volumes are
folders of the test, and the process has neither capabilities nor a way to get any. That is what
`docker run --read-only --cap-drop ALL --security-opt no-new-privileges` gives.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

NOBODY = 65532
_SETUP = """
set -e
root=$1; ours=$2; shift 2
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done
shift
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero full random urandom; do
  : > "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
done
mount -o remount,ro "$root/dev"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
ip link set lo up
echo ready
read -r _
exec env -i $ours "$(command -v chroot)" "$root" \\
  setpriv --reuid 65532 --regid 65532 --clear-groups --no-new-privs \\
  --inh-caps=-all --bounding-set=-all "$@"
"""


@dataclass(frozen=True)
class Image:
    """The mounted files of an image, and its configuration in Docker's format."""

    root: Path
    config: Mapping[str, Any]
    size: int


class Container:
    """Inside `with`, the container runs. Leaving kills its processes."""

    def __init__(
        self,
        image: Image,
        volumes: Mapping[str, Path],
        log: Path,
    ) -> None:
        """Run the image's own command; `volumes` are folders by path inside."""
        self._image, self._volumes, self._log = image, volumes, log
        self._environment = [*image.config["Env"], "HOME=/var/lib/grace"]
        self._command = [*image.config["Entrypoint"], *image.config["Cmd"]]

    def __enter__(self) -> Self:
        mounts = [
            str(word) for inside, folder in self._volumes.items() for word in (folder, inside)
        ]
        for folder in self._volumes.values():
            os.chown(folder, NOBODY, NOBODY)
        isolated = ["unshare", "--mount", "--net", "--ipc", "--uts", "--pid", "--fork"]
        shell = [*isolated, "--kill-child", "sh", "-c", _SETUP, "sh"]
        environment = " ".join(self._environment)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*shell, str(self._image.root), environment, *mounts, "--", *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", self.log
        below = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self.pid = int(below.read_text())
        self._connect()
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # and its child, the first process inside
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _connect(self) -> None:
        """Join the container and the test by a network of two addresses (RFC 2544)."""
        outside, inside = f"out{self.pid}", f"in{self.pid}"
        place = self.pid % 64 * 4
        inner = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "ip"]
        pair = ["type", "veth", "peer", "name", inside, "netns", str(self.pid)]
        for command in (
            ["ip", "link", "add", outside, *pair],
            ["ip", "address", "add", f"198.18.0.{place + 1}/30", "dev", outside],
            ["ip", "link", "set", outside, "up"],
            [*inner, "address", "add", f"198.18.0.{place + 2}/30", "dev", inside],
            [*inner, "link", "set", inside, "up"],
        ):
            subprocess.run(command, check=True)
        self.host = f"198.18.0.{place + 2}"

    @property
    def log(self) -> str:
        return self._log.read_text()

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as the container's user and with its environment."""
        inside = ["nsenter", f"--target={self.pid}", "--all", f"--root=/proc/{self.pid}/root"]
        inside += [f"--wd=/proc/{self.pid}/root", f"--setuid={NOBODY}", f"--setgid={NOBODY}"]
        return subprocess.run(
            [*inside, "env", "-i", *self._environment, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def processes(self) -> list[dict[str, str]]:
        """Return the kernel's report on each process inside, as in /proc/PID/status."""
        found = self.execute("sh", "-c", "cat /proc/[0-9]*/status").stdout
        reports = found.split("Name:")[1:]
        lines = (f"Name:{report}".splitlines() for report in reports)
        return [dict(line.split(":\t", 1) for line in each if ":\t" in line) for each in lines]

    def stop(self) -> int:
        """End the container as engines do, by SIGTERM; return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self._process.wait(60)


@contextmanager
def opened_image(options: Sequence[str], name: str) -> Iterator[Image]:
    """Mount the files of an image in the storage of buildah, which gets its `options`."""

    def run(*words: str) -> str:
        command = ["buildah", *words]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    config = json.loads(run("inspect", "--type", "image", name))["Docker"]["config"]
    container = run("from", "--pull-never", *options, name)
    try:
        root = Path(run("mount", container))
        yield Image(root, config, _disk_bytes(root))
    finally:
        run("rm", container)


def _disk_bytes(root: Path) -> int:
    """Return what the image takes on a disk, without its compression in a registry."""
    done = subprocess.run(
        ["du", "--summarize", "--block-size=1", root], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[0])
