"""Whoever knows only the address can call: the server describes its messages itself.

The client runs as a process of its own, which never sees our stubs, as grpcurl and ghz do not.
"""

import json
from pathlib import Path

import pytest

from support.command import run_python
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

CLIENT = """
import json, sys
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2

address, method, request = sys.argv[1:]
channel = grpc.insecure_channel(address)
ask = channel.stream_stream(
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
    response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
)

def asked(**question):
    (reply,) = ask(iter([reflection_pb2.ServerReflectionRequest(**question)]), timeout=30)
    return reply

services = [s.name for s in asked(list_services="").list_services_response.service]
service, _, name = method.partition("/")
pool = descriptor_pool.DescriptorPool()
for file in asked(file_containing_symbol=service).file_descriptor_response.file_descriptor_proto:
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
called = pool.FindServiceByName(service).FindMethodByName(name)
Request = message_factory.GetMessageClass(called.input_type)
Reply = message_factory.GetMessageClass(called.output_type)
call = channel.unary_unary(
    f"/{service}/{name}",
    request_serializer=Request.SerializeToString,
    response_deserializer=Reply.FromString,
)
message = json_format.Parse(request, Request(), descriptor_pool=pool)
reply = json_format.MessageToDict(call(message, timeout=30), preserving_proto_field_name=True)
assert not [module for module in sys.modules if module.partition(".")[0] == "proto"]
print(json.dumps({"services": services, "reply": reply}))
"""


def called(address: str, method: str, request: object, folder: Path) -> dict[str, object]:
    """The services that the address lists, and the reply."""
    # sys.argv of `-c` is not ours to give: the script sets it.
    arguments = ["client", address, method, json.dumps(request)]
    done = run_python(f"import sys\nsys.argv = {arguments!r}\n{CLIENT}", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_a_request_is_built_from_what_the_server_says_of_itself(
    healthy_server: ServerProcess, serving_files: ServingFiles, tmp_path: Path
) -> None:
    request = {**serving_files.requests[0], "max_ads": 7, "include_sids": True}
    method = "grace.v1.AdsRetrieval/Retrieve"
    answer = called(healthy_server.address, method, request, tmp_path)
    assert answer["services"] == [
        "grace.v1.AdsRetrieval",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    reply = answer["reply"]
    assert isinstance(reply, dict)
    assert reply["request_id"] == request["request_id"]
    assert len(reply["ad_ids"]) == len(reply["scores"]) == reply["counts"]["ads_returned"]
    assert len(reply["sids"]["sid_of_ad"]) == len(reply["ad_ids"]) > 0


def test_operators_find_the_status_on_the_admin_address(
    healthy_server: ServerProcess, tmp_path: Path
) -> None:
    answer = called(healthy_server.admin, "grace.v1.Admin/GetStatus", {}, tmp_path)
    reply = answer["reply"]
    assert isinstance(reply, dict)
    assert reply["state"] == "STATE_SERVING"
    assert reply["model"]["inputs"]["clicks"] == "sequence"
    assert "country" in reply["snapshot"]["attributes"]
