"""A container of an image that buildah holds, run by the kernel's own tools: no engine is needed.

It has its own mounts and processes, and the network of this machine. The root is read-only except
for the volume, and the process has no capabilities and cannot get any. `docker run --read-only
--cap-drop ALL --security-opt no-new-privileges --network host` does the same.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOBODY = 65532
VOLUME = "/var/lib/grace"
_SETUP = """
set -e
root=$1; volume=$2; environment=$3; shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$volume" "$root/var/lib/grace"
mount --rbind /dev "$root/dev"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
exec env -i $environment "$(command -v chroot)" "$root" \\
  setpriv --reuid 65532 --regid 65532 --clear-groups --no-new-privs \\
  --inh-caps=-all --bounding-set=-all "$@"
"""


@dataclass(frozen=True)
class Image:
    """The mounted files of an image, and its configuration in Docker's format."""

    root: Path
    config: Mapping[str, Any]

    @property
    def environment(self) -> list[str]:
        return [*self.config["Env"], f"HOME={VOLUME}"]


@dataclass(frozen=True)
class Container:
    image: Image
    log: Path
    process: subprocess.Popen[bytes]

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as the container's user and with its environment."""
        below = f"/proc/{self.pid}/root"
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--pid", f"--root={below}"]
        inside += [f"--wd={below}", f"--setuid={NOBODY}", f"--setgid={NOBODY}"]
        whole = [*inside, "env", "-i", *self.image.environment, *command]
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120)

    def processes(self) -> list[dict[str, str]]:
        """Return the kernel's report on each process inside, as in /proc/PID/status."""
        reports = self.execute("sh", "-c", "cat /proc/[0-9]*/status").stdout.split("Name:")[1:]
        lines = (f"Name:{report}".splitlines() for report in reports)
        return [dict(line.split(":\t", 1) for line in each if ":\t" in line) for each in lines]

    def stop(self) -> int:
        """End the container as engines do, by SIGTERM; return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(60)

    @property
    def pid(self) -> int:
        """The first process inside; all others end with it."""
        outer = self.process.pid
        return int(Path(f"/proc/{outer}/task/{outer}/children").read_text())


@contextmanager
def running(image: Image, volume: Path, log: Path) -> Iterator[Container]:
    """Run the image's own command. Leaving kills its processes."""
    os.chown(volume, NOBODY, NOBODY)
    isolated = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", _SETUP, "sh"]
    given = [str(image.root), str(volume), " ".join(image.environment)]
    command = [*isolated, *given, *image.config["Entrypoint"], *image.config["Cmd"]]
    with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
        container = Container(image, log, process)
        try:
            yield container
        finally:
            if process.poll() is None:
                os.kill(container.pid, signal.SIGKILL)


@contextmanager
def opened_image(options: Sequence[str], name: str) -> Iterator[Image]:
    """Mount the files of an image in the storage of buildah, which gets its `options`."""

    def run(*words: str) -> str:
        command = ["buildah", *words]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    config = json.loads(run("inspect", "--type", "image", name))["Docker"]["config"]
    container = run("from", "--pull-never", *options, name)
    try:
        yield Image(Path(run("mount", container)), config)
    finally:
        run("rm", container)
