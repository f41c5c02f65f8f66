"""The CPU image of a clean clone serves with a read-only root, as a user without rights.

buildah builds the image. IMAGE_ARGS, which `make image` passes on, names the registry of packages
where the default one cannot be reached.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clone import copy_clone
from support.command import run_grace
from support.container import NOBODY, Image, opened_image, running

NEEDED = ("buildah", "make", "nsenter", "setpriv", "unshare")
missing = [name for name in NEEDED if shutil.which(name) is None]
pytestmark = [
    pytest.mark.image,
    pytest.mark.subprocess,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes mounts: needs root"),
]

METRICS = "http://127.0.0.1:9464/metrics"


@pytest.fixture(scope="session")
def image(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    policy = tmp_path_factory.mktemp("policy") / "policy.json"  # a machine may have none
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    os.environ["BUILDAH_ISOLATION"] = "chroot"
    trust = ["--signature-policy", str(policy)]
    clone = copy_clone(repository, tmp_path_factory.mktemp("clone"))
    build = shlex.join(["buildah", "bud", "--format", "docker", *trust])
    subprocess.run(["make", "image", f"IMAGE_BUILD={build}"], cwd=clone, check=True)
    with opened_image(trust, "localhost/grace:cpu") as opened:
        yield opened


def test_a_container_alone_serves_the_demonstration_without_rights(
    image: Image, tmp_path: Path
) -> None:
    volume, requests = tmp_path / "volume", image.root / "usr/share/grace/demo/requests.jsonl"
    volume.mkdir()
    with running(image, volume, tmp_path / "log") as container:
        done = run_grace("retrieve", "--request", requests, "--wait", "60")
        log = container.log.read_text()
        assert re.search(r"[1-9]\d* returned", done.stdout), done.stderr + log
        page = ["curl", "--silent", "--fail", METRICS]
        metrics = subprocess.run(page, capture_output=True, text=True, check=True).stdout
        assert 'grace_requests_total{code="OK"} 1.0' in metrics
        for command in (["grace", "admin", "status"], image.config["Healthcheck"]["Test"][1:]):
            inside = container.execute(*command)
            assert inside.returncode == 0, inside.stderr
        servers = [each for each in container.processes() if each["Name"].startswith("grace")]
        assert servers
        for process in servers:
            assert set(process["Uid"].split()) == set(process["Gid"].split()) == {str(NOBODY)}
            assert int(process["CapEff"], 16) == int(process["CapBnd"], 16) == 0
            assert process["NoNewPrivs"].strip() == "1"
        assert "Read-only file system" in container.execute("touch", "/var/tmp/file").stderr
        assert container.stop() == 0
    assert not re.search(" (ERROR|WARN)", container.log.read_text())
    files = {str(file.relative_to(volume)) for file in volume.rglob("*") if file.is_file()}
    assert files == {"state/ad_updates/log", "state/ad_updates/.lock"}
