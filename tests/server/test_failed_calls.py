"""A burst of refusals leaves nothing behind that only a garbage collection would free."""

import gc
from typing import Any

import pytest

from grace.configs.serving import LimitsConfig
from grace.server.errors import ServiceError
from grace.server.transport.front_end import Call
from support.served import Service, reason_of, served, until

KEPT = (Call, ServiceError)


@pytest.mark.usefixtures("no_collections")
def test_a_refused_call_is_freed_at_once() -> None:
    async def use(service: Service, retrieve: Any) -> None:
        async def refused() -> None:
            assert await reason_of(retrieve(b"\xff")) == "malformed"
            service.pipeline.answers = False
            waiting = retrieve(b"")
            await until(lambda: len(service.pipeline.taken) == 1)
            assert await reason_of(retrieve(b"")) == "too_many_calls"
            service.pipeline.answer()
            assert await waiting
            service.pipeline.answers = True
            await until(lambda: not service.state.open_calls)

        def alive() -> dict[str, int]:
            objects = gc.get_objects()
            return {kind.__name__: sum(type(x) is kind for x in objects) for kind in KEPT}

        await refused()
        before = alive()
        for _ in range(5):
            await refused()
        assert alive() == before

    served(use, LimitsConfig(open_calls=1))
