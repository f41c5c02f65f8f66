"""The health check of the image asks the server by gRPC, with and without TLS."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grace.bench.fleet.certificates import Authority
from support.certificates import server_tls
from support.command import plain_environment
from support.served import Service, served

pytestmark = pytest.mark.subprocess


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


async def check(repository: Path, address: str, **more: str | Path) -> tuple[int, str]:
    """Run the check as the image does; return its exit code and what it prints."""
    given = {f"GRACE_HEALTH_{name.upper()}": str(value) for name, value in more.items()}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", str(repository / "docker" / "health.py")],
            env=plain_environment(GRACE_HEALTH_ADDRESS=address, **given),
            capture_output=True,
            text=True,
            check=False,
        )

    done = await asyncio.to_thread(run)
    assert done.stderr == ""
    return done.returncode, done.stdout.removeprefix(f"{address}: ").strip()


def test_a_container_is_healthy_while_its_server_serves(repository: Path) -> None:
    async def use(service: Service, _: Any) -> None:
        assert await check(repository, service.address) == (1, "NOT_SERVING")
        await service.listeners.set_health(serving=True)
        assert await check(repository, service.address) == (0, "SERVING")
        await service.listeners.set_health(serving=False)
        assert await check(repository, service.address) == (1, "NOT_SERVING")

    served(use)


def test_a_container_without_a_server_is_unhealthy(repository: Path) -> None:
    code, shown = asyncio.run(check(repository, "127.0.0.1:9"))
    assert code == 1
    assert shown.startswith("UNAVAILABLE: ")


def test_the_check_speaks_tls_with_the_files_that_the_environment_names(
    repository: Path, ca: Authority
) -> None:
    client = ca.issue("client")

    async def use(service: Service, _: Any) -> None:
        await service.listeners.set_health(serving=True)
        code, _ = await check(repository, service.address)
        assert code == 1
        files = {"ca": ca.file, "certificate": client.certificate, "key": client.key}
        assert await check(repository, service.address, **files) == (0, "SERVING")

    served(use, tls=server_tls(ca.issue("server"), ca.file))
