"""The stubs are those of the .proto file, and load where the oldest grpcio and protobuf are."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from grace.proto import retrieval_pb2 as wire

pytestmark = pytest.mark.subprocess

BUF = Path(sys.executable).with_name("buf")


def run_buf(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([BUF, *arguments], cwd=folder, capture_output=True, check=False)


def described(folder: Path) -> FileDescriptorProto:
    arguments = ("--as-file-descriptor-set", "--exclude-source-info", "--output", "-")
    done = run_buf(folder, "build", *arguments)
    assert done.returncode == 0, done.stderr
    (file,) = FileDescriptorSet.FromString(done.stdout).file
    return file


@pytest.fixture
def edited(tmp_path: Path, repository: Path) -> Path:
    """A copy of the API, to break."""
    shutil.copy(repository / "buf.yaml", tmp_path)
    shutil.copytree(repository / "proto", tmp_path / "proto")
    return tmp_path


def test_the_stubs_say_what_the_proto_file_says(repository: Path) -> None:
    of_stubs = FileDescriptorProto()
    wire.DESCRIPTOR.CopyToProto(of_stubs)
    of_file = described(repository)
    of_file.name = of_stubs.name  # protoc reads it through the link in `src/grace`
    for message in of_file.message_type:
        clear_json_names(message)
    assert of_stubs == of_file


def clear_json_names(message: DescriptorProto) -> None:
    """buf writes them out; protoc leaves them to be derived."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        clear_json_names(nested)


def test_the_stubs_load_under_the_oldest_declared_grpcio_and_protobuf(repository: Path) -> None:
    project = (repository / "pyproject.toml").read_text()

    def oldest(name: str) -> tuple[int, ...]:
        return version(re.findall(rf'"{name}>=([\d.]+)[",]', project)[0])

    grpc_stubs = (repository / "proto" / "retrieval_pb2_grpc.py").read_text()
    (grpc_made,) = re.findall(r"GRPC_GENERATED_VERSION = '([\d.]+)'", grpc_stubs)
    stubs = (repository / "proto" / "retrieval_pb2.py").read_text()
    (protobuf_made,) = re.findall(r"# Protobuf Python Version: ([\d.]+)\n", stubs)
    assert version(grpc_made) <= oldest("grpcio")
    assert version(protobuf_made)[:2] <= oldest("protobuf")


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_a_change_that_breaks_clients_is_found(edited: Path) -> None:
    file = edited / "proto" / "retrieval.proto"
    against = ("breaking", "--against", "proto/baseline.json")
    assert run_buf(edited, *against).returncode == 0
    text = file.read_text()
    file.write_text(text.replace("uint32 max_ads = 6;", "uint32 max_ads = 66;"))
    done = run_buf(edited, *against)
    assert done.returncode != 0
    assert b"max_ads" in done.stdout
    added = "string profile = 7;\n  string locale = 99;"
    file.write_text(text.replace("string profile = 7;", added))
    assert run_buf(edited, *against).returncode == 0, "a new field breaks nobody"


def test_the_api_keeps_bufs_rules_but_the_two_that_are_named(repository: Path) -> None:
    assert run_buf(repository, "lint").returncode == 0
    excepted = re.findall(r"^    - ([A-Z_]+)", (repository / "buf.yaml").read_text(), re.MULTILINE)
    assert excepted == ["PACKAGE_DIRECTORY_MATCH", "SERVICE_SUFFIX"]
