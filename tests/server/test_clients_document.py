"""The programs of docs/clients.md: each runs against a real server, if its compiler is installed.
`make test-compile` runs those of compiled languages.

Java also needs gRPC's jars, in CLASSPATH or where Debian has them, and Go its packages in GOPATH.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from grace.bench.fleet.certificates import Authority
from grace.client.retry import SERVICE_CONFIG
from support.command import run_command, run_python
from support.documents import the_file
from support.server_process import ServerProcess
from support.serving_files import ServingFiles
from support.text_shop import write_map

pytestmark = pytest.mark.subprocess

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "clients.md").read_text(encoding="utf-8")
PLAINTEXT, OVER_TLS = "127.0.0.1:50051", "ads.example.com:50051"
JARS = "/usr/share/java/*"
PATIENT = {
    "go": (r"\btime\.Second\)\n", "60*time.Second)\n"),
    "java": (r"withDeadlineAfter\(1,", "withDeadlineAfter(60,"),
    "cpp": (r"seconds\(1\)", "seconds(60)"),
}
"""How a program waits longer for its answer than on the page: a machine may be busy."""

ADS = re.compile(r"(\d+ -\d+(\.\d+)?\n){5}")
"""Five ads with their scores."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, shop: Path, tls_folder: Path) -> Path:
    """A folder with the files that the programs read."""
    shutil.copy(tls_folder / "ca.pem", tmp_path)
    write_map(shop / "ids.parquet", {"CJ-6534178": 1, "CJ-6534202": 2, "CJ-6533889": 3})
    write_map(shop / "advertisers.parquet", {"Acme, Inc.": 7})
    request = the_file(REPOSITORY / "docs" / "api.md", "request.json")
    (tmp_path / "request.json").write_text(request)
    shutil.copy(SERVICE_CONFIG, tmp_path)
    (tmp_path / "proto").symlink_to(REPOSITORY / "proto")
    return tmp_path


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the certificates of `tls_server` and its clients."""
    folder = tmp_path_factory.mktemp("tls")
    ca = Authority(folder, "the")
    ca.file.rename(folder / "ca.pem")
    ca.issue("server")
    ca.issue("client")
    return folder


@pytest.fixture(scope="module")
def tls_server(serving_files: ServingFiles, tls_folder: Path) -> Iterator[ServerProcess]:
    files = {"certificate": str(tls_folder / "server.pem"), "key": str(tls_folder / "server.key")}
    config = serving_files.write_config("clients_page.yaml", listen={"tls": files})
    with ServerProcess(config) as server:
        yield server


def test_the_service_config_is_the_file() -> None:
    assert blocks("json") == [SERVICE_CONFIG.read_text(encoding="utf-8")]


PROGRAMS = [block for block in blocks("python") if PLAINTEXT in block]


@pytest.mark.parametrize("program", PROGRAMS, ids=map(str, range(1, len(PROGRAMS) + 1)))
def test_each_python_program_runs(
    program: str, folder: Path, healthy_server: ServerProcess
) -> None:
    # A busy machine may take longer than the page's second.
    patient = program.replace("timeout=1.0", "timeout=60.0")
    done = run_python(patient.replace(PLAINTEXT, healthy_server.address), cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no answer" not in done.stdout


def test_the_python_program_over_tls_runs(tls_folder: Path, tls_server: ServerProcess) -> None:
    (program,) = (block for block in blocks("python") if OVER_TLS in block)
    shown = "print(*(f'{ad.ad_id} {ad.score}' for ad in result.ads[:5]), sep='\\n')"
    patient = program.replace(OVER_TLS, tls_server.address).replace("=1.0", "=60.0")
    done = run_python(f"{patient}\n{shown}", cwd=tls_folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert ADS.fullmatch(done.stdout)


def required(*programs: str) -> None:
    """Skip the test by the name of the first program that is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def output(folder: Path, *command: str) -> str:
    done = finished(folder, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def finished(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    paths = filter(None, (str(folder), os.environ.get("GOPATH"), "/usr/share/gocode"))
    go = {"GO111MODULE": "off", "GOFLAGS": "", "GOPATH": ":".join(paths)}
    return run_command(*command, cwd=folder, env=go)


def generate_stubs(folder: Path, language: str) -> None:
    """Run the page's command for the stubs of this language."""
    (command,) = (line for line in blocks("sh") if f"--{language}_out" in line)
    output(folder, "bash", "-euc", command.partition("\ng++")[0])


def write_program(folder: Path, language: str, name: str, server: ServerProcess) -> None:
    (program,) = blocks(language)
    assert f"dns:///{OVER_TLS}" in program
    program = program.replace(OVER_TLS, server.address)
    (folder / name).write_text(re.sub(*PATIENT[language], program))


def assert_prints_ads(folder: Path, *command: str) -> None:
    assert ADS.fullmatch(output(folder, *command))


@pytest.mark.compile
def test_the_go_program_runs(folder: Path, tls_server: ServerProcess) -> None:
    required("go", "gofmt", "protoc", "protoc-gen-go", "protoc-gen-go-grpc")
    if finished(folder, "go", "list", "google.golang.org/grpc/health").returncode:
        pytest.skip("google.golang.org/grpc is not installed")
    (folder / "src").mkdir()
    generate_stubs(folder, "go")
    (folder / "example.com").rename(folder / "src" / "example.com")
    write_program(folder, "go", "ads.go", tls_server)
    assert output(folder, "gofmt", "-l", "ads.go") == ""
    output(folder, "go", "vet", "ads.go")
    output(folder, "go", "build", "-o", "ads", "ads.go")
    assert_prints_ads(folder, "./ads")


@pytest.mark.compile
def test_the_java_program_runs(folder: Path, tls_server: ServerProcess) -> None:
    required("javac", "java", "protoc", "grpc_java_plugin")
    jars = os.environ.get("CLASSPATH", JARS)
    if finished(folder, "javap", "-cp", jars, "io.grpc.netty.NettyChannelBuilder").returncode:
        pytest.skip("io.grpc:grpc-netty is not installed")
    generate_stubs(folder, "java")
    write_program(folder, "java", "Ads.java", tls_server)
    stubs: Sequence[str] = sorted(map(str, folder.glob("grace/v1/*.java")))
    output(folder, "javac", "-cp", jars, "-d", "out", "Ads.java", *stubs)
    run = ("java", "-cp", f"out:{jars}", "Ads")
    if "does not support ALPN" in finished(folder, *run).stderr:
        pytest.skip("the program compiles, but this netty cannot speak TLS for gRPC")
    assert_prints_ads(folder, *run)


@pytest.mark.compile
def test_the_cpp_program_runs(folder: Path, tls_server: ServerProcess) -> None:
    required("g++", "pkg-config", "protoc", "grpc_cpp_plugin")
    if finished(folder, "pkg-config", "--exists", "grpc++", "protobuf").returncode:
        pytest.skip("grpc++ is not installed")
    generate_stubs(folder, "cpp")
    write_program(folder, "cpp", "ads.cpp", tls_server)
    (command,) = (line for line in PAGE.splitlines() if line.startswith("g++ "))
    output(folder, "bash", "-euc", f"{command} -Wall -Wextra")
    assert_prints_ads(folder, "./ads")
