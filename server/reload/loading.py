"""A load, on its own thread, while another pair serves. `Retired` frees that pair afterwards.

Every failure of a load ends here.

A load should not delay live requests. Most of it runs in C++ and torch without the interpreter
lock. One thread reads the files, a few check the arrays, and a pause follows each warm-up batch.
"""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from time import sleep

import torch

from grace.configs.errors import GraceError
from grace.configs.machine import available_cores
from grace.configs.serving import ServingConfig
from grace.index.snapshot import Snapshot
from grace.model.checkpoints.checkpoint import checkpoint_id, require_match
from grace.model.checkpoints.folder import MODEL_YAML
from grace.model.definition.spec import load_spec
from grace.server.engine.memory import require_memory_of_weights
from grace.server.engine.serving_pair import (
    ServingModel,
    ServingPair,
    load_model,
    load_version,
    serving_pair,
)
from grace.server.messages import Retrieval
from grace.server.observe.logs import LOG
from grace.server.stages.stages import Stages
from grace.server.stages.warm_up import warm_up
from grace.server.start_up import start_fault, too_little_memory
from grace.server.threads import daemon_thread

CORES_PER_THREAD = 4
"""A load checks the arrays with one thread for this many cores. Requests have the others."""

READERS = 1
"""Threads that read files. Each needs the interpreter after every chunk, and delays the server."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The version and checkpoint to serve. None keeps the served one."""

    version: int | None = None
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True)
class LoadFault:
    """Why a load failed.

    text              one line with file and remedy
    device_is_broken  whether the load broke the GPU, so that its results cannot be trusted any more
    """

    text: str
    device_is_broken: bool = False


@dataclass(frozen=True, eq=False)
class Loader:
    """Makes the next pair from the served one.

    requests     each new pair warms up with them
    before_swap  called with each new pair that is warm, on the load's thread, before it serves; an
                 exception fails the load
    """

    config: ServingConfig
    device: torch.device
    stages: Stages
    requests: tuple[Retrieval, ...]
    before_swap: Callable[[ServingPair], None]

    def load(self, wanted: Wanted, served: ServingPair) -> ServingPair | LoadFault:
        """Return a warm pair, or the served one if that is what is wanted."""
        try:
            # Kernels are launched on the thread's current device, which may be another GPU.
            with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
                return self._loaded(wanted, served)
        except Exception as error:  # noqa: BLE001, whatever fails, the old pair keeps serving
            return self._fault_of(error, wanted)

    def _loaded(self, wanted: Wanted, served: ServingPair) -> ServingPair:
        snapshot, model = served.snapshot, served.model
        is_other = wanted.version not in (None, snapshot.facts.version)
        if is_other:
            threads = max(1, available_cores() // CORES_PER_THREAD)
            snapshot = load_version(self.config, wanted.version, self.device, threads, READERS)
        if wanted.checkpoint is None:
            require_match(model.spec, snapshot, model.folder)
        elif checkpoint_id(wanted.checkpoint) != model.checkpoint:
            model = self._model(wanted.checkpoint, snapshot)
        if is_other:
            pair = serving_pair(snapshot, model, self.config)
        elif model is served.model:
            return served
        else:
            pair = replace(served, model=model)
        generation = self.config.generation
        # What is slow once belongs to the model. A snapshot alone needs to show that it works.
        buckets = generation.batch_buckets[:1] if model is served.model else None
        # After each batch, live requests have the engine for as long as the batch took.
        warm_up(self.stages, pair, generation, self.requests, None, sleep, buckets)
        self.before_swap(pair)
        return pair

    def _model(self, checkpoint: Path, snapshot: Snapshot) -> ServingModel:
        require_match(load_spec(checkpoint / MODEL_YAML), snapshot, checkpoint)
        require_memory_of_weights(checkpoint, self.device)
        return load_model(replace(self.config, checkpoint=checkpoint), snapshot, self.device)

    def _fault_of(self, error: Exception, wanted: Wanted) -> LoadFault:
        """Return the fault without the error, whose traceback would keep the load's memory."""
        config = self.config
        if wanted.checkpoint is not None:
            config = replace(config, checkpoint=wanted.checkpoint)
        shortage = too_little_memory(error, config)
        known = shortage or error
        if isinstance(known, GraceError | OSError):
            text = start_fault(known, config)
        else:
            text = f"internal error ({type(error).__name__}); see load_broke in the server's log"
            LOG.error("load_broke", exc_info=error)
        return LoadFault(text, self._device_is_broken())

    def _device_is_broken(self) -> bool:
        """Return whether the GPU is broken: errors may show late, but then every call fails."""
        if self.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False


class Retired:
    """Frees the memory of the pairs that the server has swapped out, on its own thread.

    Returning gigabytes to the system takes longer than a batch. The thread that ends the last batch
    of a pair must not wait for that.
    """

    def __init__(self) -> None:
        self._parts: SimpleQueue[object] = SimpleQueue()
        daemon_thread("grace-free", self._free).start()

    def add(self, pair: ServingPair) -> None:
        """Free the pair's parts once its last batch has ended and nothing else holds the pair."""
        parts = (pair.snapshot, pair.index, pair.users, pair.matcher, pair.model)
        weakref.finalize(pair, self._parts.put, parts).atexit = False

    def _free(self) -> None:
        while True:
            self._parts.get()
