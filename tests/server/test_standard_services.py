"""Health and reflection, through which no caller can fill the log."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from hyperframe.frame import HeadersFrame

from support.raw_http2 import RawHttp2
from support.served import Service, serving
from support.server_process import ServerProcess

HEALTH = "/grpc.health.v1.Health"
VERSIONS = ("v1", "v1alpha")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]


def reflection(version: str) -> str:
    return f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"


@pytest.fixture(params=["relays", "in process"])
def channel(
    request: pytest.FixtureRequest, healthy_server: ServerProcess
) -> Iterator[grpc.Channel]:
    """A channel to the clients' address, with gRPC in relays, or to Admin's, in the server."""
    relays = request.param == "relays"
    address = healthy_server.address if relays else healthy_server.admin
    with grpc.insecure_channel(address) as channel:
        yield channel


def asked(channel: grpc.Channel, version: str, **question: Any) -> ServerReflectionResponse:
    ask: Any = channel.stream_stream(
        reflection(version),
        request_serializer=ServerReflectionRequest.SerializeToString,
        response_deserializer=ServerReflectionResponse.FromString,
    )
    (reply,) = ask(iter([ServerReflectionRequest(**question)]), timeout=30)
    assert isinstance(reply, ServerReflectionResponse)
    return reply


@pytest.mark.subprocess
@pytest.mark.parametrize("version", VERSIONS)
def test_reflection_describes_every_service_it_lists(channel: grpc.Channel, version: str) -> None:
    listed = asked(channel, version, list_services="").list_services_response.service
    first, *shared = [service.name for service in listed]
    assert first in ("grace.v1.AdsRetrieval", "grace.v1.Admin")
    assert shared == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    for name in (first, *shared):
        reply = asked(channel, version, file_containing_symbol=name)
        files = reply.file_descriptor_response.file_descriptor_proto
        declared = FileDescriptorProto.FromString(files[0])
        assert name in {f"{declared.package}.{service.name}" for service in declared.service}


@pytest.mark.subprocess
@pytest.mark.parametrize("symbol", ["", "grace.v1.AdsRetrieval.Recall", "grace", "\0", "é"])
def test_a_symbol_that_is_not_there_is_an_error_in_the_reply(
    channel: grpc.Channel, symbol: str
) -> None:
    reply = asked(channel, "v1", file_containing_symbol=symbol)
    assert reply.error_response.error_code == NOT_FOUND


@pytest.mark.subprocess
def test_health_knows_the_whole_server_and_the_service_of_its_address_alone(
    channel: grpc.Channel,
) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    listed = asked(channel, "v1", list_services="").list_services_response.service
    known = {"", listed[0].name}
    for service in ("", "grace.v1.AdsRetrieval", "grace.v1.Admin", "another"):
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.NOT_FOUND
            assert service not in known
        else:
            assert reply.status == SERVING
            assert service in known


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("method", "code"),
    [
        (f"{HEALTH}/Check", grpc.StatusCode.INVALID_ARGUMENT),
        (f"{HEALTH}/Watch", grpc.StatusCode.INVALID_ARGUMENT),
        (f"{HEALTH}/List", grpc.StatusCode.UNIMPLEMENTED),
        (f"{HEALTH}/Nothing", grpc.StatusCode.UNIMPLEMENTED),
        ("/another.Service/Call", grpc.StatusCode.UNIMPLEMENTED),
        *((reflection(version), grpc.StatusCode.OK) for version in VERSIONS),
    ],
)
def test_no_faulty_call_writes_an_error_into_the_log(
    method: str, code: grpc.StatusCode, channel: grpc.Channel, healthy_server: ServerProcess
) -> None:
    call: Any = channel.unary_unary(method)
    before = len(healthy_server.lines)
    for message in b"\xff", b"\x0a\x02\xff\xff":
        try:
            call(message, timeout=30)
            ended = grpc.StatusCode.OK
        except grpc.RpcError as error:
            ended = error.code()
        assert ended is code
    assert [line for line in healthy_server.lines[before:] if '"level": "info"' not in line] == []


@serving(everywhere=True)
async def test_a_watcher_that_does_not_read_hides_no_change_from_others(service: Service) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        everything = health_pb2.HealthCheckRequest()
        with ExitStack() as stack:
            for _ in range(2):
                client = stack.enter_context(RawHttp2(service.address, window=0))
                client.call(headers={":path": f"{HEALTH}/Watch".encode()})
                # The headers have come, so the server holds a reply.
                await asyncio.to_thread(client.read_until, HeadersFrame)
            watch = stub.Watch(everything)
            assert (await watch.read()).status == NOT_SERVING
            for serving in True, False, True:
                await service.listeners.set_health(serving=serving)
                now = SERVING if serving else NOT_SERVING
                assert (await stub.Check(everything)).status == now
                assert (await watch.read()).status == now
            watch.cancel()
