"""The Python clients: their addresses, their replies, and their errors."""

import asyncio

import pytest

from grace.client import AsyncClient, Client
from grace.configs.errors import CallError, InputError, InvalidCallError
from grace.proto.retrieval_pb2 import RetrieveRequest
from support.server_process import ServerProcess
from support.serving_files import ServingFiles


@pytest.mark.parametrize(
    "address",
    [
        *("", "foo", "50051", ":50051", "127.0.0.1:", "127.0.0.1:http", "http://127.0.0.1:50051"),
        *("unix:grace.sock", "::1:50051", "[127.0.0.1]:50051", "[::1]50051", "a b:50051"),
        *("127.0.0.1:50051/", "127.0.0.1:٣", "127.0.0.1:50051\n"),
    ],
)
def test_an_address_is_host_and_port_and_nothing_else(address: str) -> None:
    with pytest.raises(InputError, match="expected HOST:PORT") as refused:
        Client(address)
    assert str(refused.value).startswith(f"address {address!r}: ")


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_that_there_is_not_is_refused(port: str) -> None:
    with pytest.raises(InputError, match=r"the port must be 1 to 65535$"):
        Client(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["ads-1.example.com:1", "[::1]:65535", "[fe80::1%eth0]:50051"])
def test_names_and_both_kinds_of_addresses_are_taken(address: str) -> None:
    with Client(address) as client:
        assert client.address == address


@pytest.mark.subprocess
def test_a_call_to_the_admin_address_says_that_it_may_be_that(
    healthy_server: ServerProcess,
) -> None:
    with Client(healthy_server.admin) as client:
        for call in (
            lambda: client.retrieve(RetrieveRequest(), timeout=30.0),
            lambda: client.wait_ready(30.0),
        ):
            with pytest.raises(CallError, match="it may be the Admin address") as refused:
                call()
            assert refused.value.exit_code == 1


@pytest.mark.subprocess
def test_the_asyncio_client_gets_the_reply_and_the_errors_of_the_other(
    healthy_server: ServerProcess,
) -> None:
    request = RetrieveRequest(request_id="r1", max_ads=3)
    unknown = RetrieveRequest(profile="no-such-profile")

    async def calls() -> tuple[list[int], str]:
        async with AsyncClient(healthy_server.address) as client:
            calls = (client.retrieve(request, timeout=30.0) for _ in range(3))
            replies = await asyncio.gather(*calls)
            with pytest.raises(InvalidCallError) as refused:
                await client.retrieve(unknown, timeout=30.0)
        assert len({tuple(reply.ads.ad_ids) for reply in replies}) == 1
        return replies[0].ads.ad_ids.tolist(), str(refused.value)

    with Client(healthy_server.address) as client:
        expected = client.retrieve(request, timeout=30.0).ads.ad_ids.tolist()
        with pytest.raises(InvalidCallError) as refused:
            client.retrieve(unknown, timeout=30.0)
    assert asyncio.run(calls()) == (expected, str(refused.value))


@pytest.mark.subprocess
def test_the_asyncio_client_waits_for_a_server_and_ends_with_its_calls(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    async def use() -> None:
        async with AsyncClient("127.0.0.1:1") as client:
            assert not await client.is_ready()
            with pytest.raises(CallError, match=r"was ready within 0\.2 s; see its log, or start"):
                await client.wait_ready(0.2)
        client = AsyncClient(faulty_server.address)
        await client.wait_ready(60.0)
        assert await client.is_ready()
        with faulty_server.faults.closed("generate"):
            call = asyncio.create_task(client.retrieve(serving_files.requests[0], timeout=60.0))
            while faulty_server.metric("grace_inflight_requests") < 1:
                await asyncio.sleep(0.001)
            await client.close()
            with pytest.raises(CallError, match="CANCELLED"):
                await call
        with pytest.raises(CallError, match="this client is closed; create another one"):
            await client.retrieve(timeout=60.0)
        faulty_server.wait_until(
            lambda: faulty_server.metric("grace_inflight_requests") == 0, "the server is idle"
        )

    asyncio.run(use())
