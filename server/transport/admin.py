"""The Admin service: what operators ask a server, and how each call reads its request and fails."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar, cast, get_args

import torch
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from grace.configs.serving import LogLevel, ServingConfig
from grace.index.targeting.schema import KINDS
from grace.index.updates.live_ads import unknown_ids
from grace.index.updates.update import ids_message
from grace.native.wire import words_of
from grace.proto import retrieval_pb2 as wire
from grace.server.ad_updates import AdUpdates
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import FIELD_CHARACTERS, ServiceError, internal, invalid_field, malformed
from grace.server.observe.logs import LOG, own_line, set_log_level
from grace.server.reload.fresh import Fresh
from grace.server.reload.reloads import Reloads
from grace.server.server_state import ServerState
from grace.server.stages.stages import Stages
from grace.server.transport.explain_call import ExplainCall
from grace.server.transport.listener.grpc_listener import GrpcContext, Method
from grace.server.waiting_updates import Updated

PAGE_IDS = 1 << 16  # at most in a reply of GetStops
MOST_SMALL_BYTES = 8192  # of a request that is read here, on the event loop
MOST_UNKNOWN = 10  # ids of one level that a reply of UpdateAds names as unknown

_LOG_LEVELS = get_args(LogLevel)
_Request = TypeVar("_Request", bound=Message)


class Admin:
    def __init__(
        self,
        state: ServerState,
        config: ServingConfig,
        reloads: Reloads,
        fresh: Fresh,
        stages: Stages,
    ) -> None:
        self._state = state
        self._config = config
        self._reloads = reloads
        self._fresh = fresh
        self._explain = ExplainCall(state, config, stages)

    @property
    def methods(self) -> Mapping[str, Method]:
        return {
            "GetStatus": _method(wire.GetStatusRequest, self._get_status),
            "SetLogLevel": _method(wire.SetLogLevelRequest, self._set_log_level),
            "Load": _method(wire.LoadRequest, self._load),
            "Rollback": _method(wire.RollbackRequest, self._roll_back),
            "Unpin": _method(wire.UnpinRequest, self._unpin),
            "UpdateAds": _method_of_bytes(self._update_ads),
            "ConfirmUpdates": _method(wire.ConfirmUpdatesRequest, self._confirm_updates),
            "GetStops": _method(wire.GetStopsRequest, self._get_stops),
            "Explain": _method_of_bytes(self._explain.reply),
        }

    async def _set_log_level(self, request: wire.SetLogLevelRequest) -> wire.SetLogLevelResponse:
        level = request.level
        if level not in _LOG_LEVELS:
            shown = level[:FIELD_CHARACTERS]
            fault = f"{shown!r} is not a level; give one of {', '.join(_LOG_LEVELS)}"
            raise invalid_field("level", fault)
        previous = set_log_level(cast("LogLevel", level))
        # `LOG.info` would hide the change to a level above it.
        LOG.handle(own_line(logging.INFO, "log_level", level_now=level, level_before=previous))
        return wire.SetLogLevelResponse(previous=previous)

    async def _load(self, request: wire.LoadRequest) -> wire.LoadResponse:
        served = await self._reloads.load(request.snapshot_version, _folder(request.checkpoint))
        return wire.LoadResponse(
            snapshot_version=served.version, checkpoint=served.checkpoint, changed=served.changed
        )

    async def _roll_back(self, request: wire.RollbackRequest) -> wire.RollbackResponse:
        served = await self._reloads.roll_back(request.snapshot_version)
        return wire.RollbackResponse(
            snapshot_version=served.version, previous_version=served.previous_version
        )

    async def _unpin(self, _: wire.UnpinRequest) -> wire.UnpinResponse:
        served = await self._reloads.unpin()
        return wire.UnpinResponse(snapshot_version=served.version, previous_pin=served.previous_pin)

    async def _update_ads(self, message: bytes, _: GrpcContext) -> bytes:
        """Return the bytes of an UpdateAdsResponse; the updates' thread reads the request."""
        state = self._state
        updated = await asyncio.wrap_future(_required(state.updates).submit(message))
        update = updated.update
        if update is not None and update.wait_visible and update.sequence <= updated.sequence:
            await self._fresh.until_visible(update.sequence)
        return wire.UpdateAdsResponse(
            sequence=updated.sequence,
            applied=updated.applied,
            ads_stopped=state.ads_stopped,
            unknown=await asyncio.to_thread(_unknown, state.pair, updated),
            visible=state.visible_sequence,
            refused=[
                wire.RefusedPut(place=each.place, ad_id=each.ad_id, fault=each.text)
                for each in updated.refused
            ],
        ).SerializeToString()

    async def _confirm_updates(
        self, request: wire.ConfirmUpdatesRequest
    ) -> wire.ConfirmUpdatesResponse:
        sequence = _required(self._state.updates).confirm(request.sequence)
        return wire.ConfirmUpdatesResponse(sequence=sequence)

    async def _get_stops(self, request: wire.GetStopsRequest) -> bytes:
        return await asyncio.to_thread(_stops, _required(self._state.updates), request)

    async def _get_status(self, _: wire.GetStatusRequest) -> wire.GetStatusResponse:
        state, config = self._state, self._config
        pair = state.pair
        return wire.GetStatusResponse(
            state=state.phase.value,
            server_version=version("grace-serving"),
            uptime_seconds=monotonic() - state.started,
            device=config.device,
            snapshot=None if pair is None else _snapshot_status(pair),
            model=None if pair is None else _model_status(pair),
            engine=None if pair is None else _engine_status(pair),
            profiles=[
                wire.ProfileStatus(name=name, beams=profile.beams, num_sids=profile.num_sids)
                for name, profile in config.generation.profiles.items()
            ],
            default_profile=config.generation.default_profile,
            max_batch=config.generation.max_batch,
            waiting=state.waiting,
            max_waiting=config.batching.max_waiting,
            in_flight=state.in_flight,
            front_ends=config.listen.front_ends,
            updates=await self._updates_status(),
            load=self._reloads.status(),
        )

    async def _updates_status(self) -> wire.UpdatesStatus | None:
        state = self._state
        updates = state.updates
        if updates is None:
            return None
        facts = updates.facts
        status = wire.UpdatesStatus(
            sequence=facts.sequence,
            stopped=facts.stopped,
            ads_stopped=state.ads_stopped,
            weights=facts.weights,
            awaits_full=facts.awaits_full,
            visible=state.visible_sequence,
            changes_fault=self._fresh.fault,
        )
        if state.pair is not None:
            shown = state.pair.shown
            status.ads_put, status.ads_removed = len(shown.put), len(shown.removed)
            status.puts_refused = len(shown.refused)
            _, waiting = await asyncio.to_thread(updates.changes_after, shown.sequence)
            status.changes_waiting = len(waiting)
        return status


def _method(
    kind: type[_Request], answer: Callable[[_Request], Coroutine[Any, Any, Message | bytes]]
) -> Method:
    """Return the method that answers small requests of this kind."""

    async def reply(message: bytes, _: GrpcContext) -> bytes:
        answered = await answer(_read(kind, message))
        return answered if isinstance(answered, bytes) else answered.SerializeToString()

    return _method_of_bytes(reply)


def _method_of_bytes(reply: Method) -> Method:
    """Return the method that replies as `reply` does, or ends the call if it raises."""

    async def method(message: bytes, context: GrpcContext) -> bytes:
        try:
            return await reply(message, context)
        except ServiceError as error:
            # The traceback would keep what the call used, such as a batch and its pair.
            failure = error.with_traceback(None)
        except Exception as error:  # noqa: BLE001, the caller must not see its text
            LOG.error("call_failed", exc_info=error)
            failure = internal()
        return await context.abort(failure.code, failure.text, failure.trailers)

    return method


def _read(kind: type[_Request], message: bytes) -> _Request:
    """Return the request. Refuse unknown fields: the server would carry out only a part of it."""
    name = kind.DESCRIPTOR.name
    if len(message) > MOST_SMALL_BYTES:
        text = f"the {name} has {len(message)} bytes, at most {MOST_SMALL_BYTES}; send fewer"
        raise ServiceError("too_large", text)
    try:
        request = kind.FromString(message)
    except DecodeError:
        raise malformed(name) from None
    unknown = UnknownFieldSet(request)
    if len(unknown):
        number, wire_type = unknown[0].field_number, unknown[0].wire_type
        raise invalid_field(name, words_of("UnknownField", value=number, limit=wire_type))
    return request


def _folder(given: str) -> Path | None:
    if not given:
        return None
    if not given.startswith("/") or "\0" in given:
        fault = "not an absolute path; give that of a folder on the server's machine"
        raise invalid_field("checkpoint", fault)
    return Path(given)


def _unknown(pair: ServingPair | None, updated: Updated) -> dict[str, wire.UnknownIds]:
    if pair is None or updated.update is None or not updated.applied:
        return {}
    return {
        level: wire.UnknownIds(count=len(ids), ids=ids[:MOST_UNKNOWN].tolist())
        for level, ids in unknown_ids(pair.snapshot, updated.update, updated.absent).items()
    }


def _stops(updates: AdUpdates, request: wire.GetStopsRequest) -> bytes:
    """Return the GetStopsResponse. protobuf would hold the interpreter's lock to write its ids."""
    after = request.after if request.HasField("after") else None
    ids, sequence = updates.stopped_ids(request.level, after, PAGE_IDS)
    return ids_message(ids) + wire.GetStopsResponse(sequence=sequence).SerializeToString()


def _required(updates: AdUpdates | None) -> AdUpdates:
    """Return the updates of a server with a `state_dir`; refuse the call to another one."""
    if updates is None:
        text = "state_dir: not set, so updates cannot be kept; restart the server with "
        text += "--state-dir FOLDER, which names a local folder"
        raise ServiceError("no_state_dir", text)
    return updates


def _snapshot_status(pair: ServingPair) -> wire.SnapshotStatus:
    snapshot = pair.snapshot
    facts, schema = snapshot.facts, snapshot.schema
    names: dict[str, Any] = {k: [each.name for each in getattr(schema, k)] for k in KINDS}
    return wire.SnapshotStatus(
        version=facts.version,
        created_at=facts.created_at,
        sid_space=facts.sid_space,
        mode=snapshot.mode.value,
        sids=snapshot.trie.num_leaves,
        ads=snapshot.ads.num_ads,
        entities=schema.entities,
        **names,
        **asdict(pair.eligibility),
        updates_watermark=facts.updates_watermark,
    )


def _model_status(pair: ServingPair) -> wire.ModelStatus:
    spec = pair.model.spec
    return wire.ModelStatus(
        checkpoint=pair.checkpoint,
        encoder=spec.encoder_kind,
        vocab_sizes=spec.vocab_sizes,
        inputs=spec.input_kinds,
    )


def _engine_status(pair: ServingPair) -> wire.EngineStatus:
    engine, device = pair.model.engine, pair.device
    return wire.EngineStatus(
        **asdict(engine),
        gpu_memory_bytes=torch.cuda.memory_reserved(device) if device.type == "cuda" else 0,
    )
