"""A client needs only an address: the server describes its messages itself.

The client is another process, which like grpcurl and ghz never sees our stubs.
"""

import json
from pathlib import Path

import pytest

from support.command import run_python
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

CLIENT = '''
import json, sys
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2

def called(address, method, request):
    """The services that the address lists, and the reply."""
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
    described = asked(file_containing_symbol=service).file_descriptor_response
    for file in described.file_descriptor_proto:
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
    method = pool.FindServiceByName(service).FindMethodByName(name)
    Request = message_factory.GetMessageClass(method.input_type)
    Reply = message_factory.GetMessageClass(method.output_type)
    call = channel.unary_unary(
        f"/{service}/{name}",
        request_serializer=Request.SerializeToString,
        response_deserializer=Reply.FromString,
    )
    message = json_format.ParseDict(request, Request(), descriptor_pool=pool)
    reply = json_format.MessageToDict(call(message, timeout=30), preserving_proto_field_name=True)
    return [services, reply]

answers = [called(*each) for each in json.loads(sys.argv[1])]
assert not [module for module in sys.modules if module.partition(".")[0] in ("grace", "proto")]
print(json.dumps(answers))
'''


def test_requests_are_built_from_what_each_address_says_of_itself(
    healthy_server: ServerProcess, serving_files: ServingFiles, tmp_path: Path
) -> None:
    request = {**serving_files.requests[0], "max_ads": 7, "include_sids": True}
    calls = [
        (healthy_server.address, "grace.v1.AdsRetrieval/Retrieve", request),
        (healthy_server.admin, "grace.v1.Admin/GetStatus", {}),
    ]
    program = f"import sys\nsys.argv = ['client', {json.dumps(calls)!r}]\n{CLIENT}"
    done = run_python(program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (services, reply), (of_operators, status) = json.loads(done.stdout)
    shared = ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
    assert services == ["grace.v1.AdsRetrieval", *shared]
    assert of_operators == ["grace.v1.Admin", *shared]
    assert reply["request_id"] == request["request_id"]
    assert len(reply["ad_ids"]) == len(reply["scores"]) == reply["counts"]["ads_returned"]
    assert len(reply["sids"]["sid_of_ad"]) == len(reply["ad_ids"]) > 0
    assert status["state"] == "STATE_SERVING"
    assert status["model"]["inputs"]["clicks"] == "sequence"
    assert "country" in status["snapshot"]["attributes"]
