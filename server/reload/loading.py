"""Loads: the one before the server is ready, and later ones, on a thread next to live requests.

Every failure of a later load ends here, and `Retired` frees the pair that served before.

A later load should not delay live requests. Most of it runs in C++ and torch without the
interpreter lock. One thread reads the files, a few check the arrays, and a pause follows each
warm-up batch.
"""

import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from time import sleep

import torch

from grace.configs.errors import GraceError
from grace.configs.machine import available_cores
from grace.configs.serving import ServingConfig
from grace.index.allocation import free_kept
from grace.index.snapshot import Snapshot
from grace.model.checkpoints.checkpoint import checkpoint_id, require_match
from grace.model.checkpoints.folder import MODEL_YAML, load_spec
from grace.server.ad_updates import AdUpdates
from grace.server.engine.serving_pair import (
    ServingPair,
    Shown,
    changed_pair,
    load_model,
    load_pair,
    load_version,
    require_numbered_ids,
    serving_pair,
    unchanged,
)
from grace.server.messages import Retrieval
from grace.server.observe.logs import LOG
from grace.server.reload.fresh import lowest_watermark, with_changes
from grace.server.stages.stages import Stages
from grace.server.stages.warm_up import Observe, warm_up
from grace.server.start_up import start_fault, too_little_memory
from grace.server.threads import daemon_thread

READERS = 1
"""Threads that read files. Each needs the interpreter after every chunk, and delays the server."""

CORES_PER_THREAD = 4
"""Requests have the other cores, while a load computes."""


@dataclass(frozen=True, slots=True)
class LoadFault:
    text: str  # one line with file and remedy
    device_is_broken: bool = False  # the load broke the GPU: its results cannot be trusted any more


@dataclass(frozen=True, eq=False)
class Loader:
    """Makes the first pair, and each next one from the served one."""

    config: ServingConfig
    device: torch.device
    stages: Stages
    requests: tuple[Retrieval, ...]  # each new pair warms up with them
    # None without a `state_dir`. Each next pair shows them, once it is warm and before it serves
    updates: AdUpdates | None

    def load_first(self, version: int | None, observe: Observe) -> ServingPair:
        """Return a warm pair of a version, None for the current one, and the configuration's
        checkpoint. `observe` gets the times of warm batches."""
        config = self.config
        with self._on_device():
            require_numbered_ids(config.limits, config.generation)
            try:
                pair = load_pair(config, self.device, version, self._changed)
            except Exception as error:  # too little memory has no one type
                shortage = too_little_memory(error, config)
                if shortage is None:
                    raise
                raise shortage from None
            warm_up(self.stages, pair, config.generation, self.requests, observe)
        return pair

    def load(
        self, version: int, checkpoint: Path | None, served: ServingPair
    ) -> ServingPair | LoadFault:
        """Return a warm pair, or the served one if that is what is wanted. Checkpoint None is the
        served one's."""
        try:
            with self._on_device():
                return self._loaded(version, checkpoint, served)
        except Exception as error:  # noqa: BLE001, whatever fails, the old pair keeps serving
            return self._fault_of(error, checkpoint)

    def show_changes(self, served: ServingPair) -> ServingPair | LoadFault:
        """Return a warm pair with the puts and removals that the served one lacks, if there are."""
        try:
            with self._on_device():
                return self._with_changes(served)
        except Exception as error:  # noqa: BLE001, whatever fails, the old pair keeps serving
            return self._fault_of(error, None)

    def _on_device(self) -> AbstractContextManager[object]:
        """Kernels are launched on the thread's current device, which may be another GPU."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _loaded(self, version: int, checkpoint: Path | None, served: ServingPair) -> ServingPair:
        snapshot, model, shown = served.snapshot, served.model, served.shown
        is_other = version != snapshot.facts.version
        if is_other:
            snapshot, shown = self._changed(self._version(version), served)
        if checkpoint is None:
            require_match(model.spec, snapshot, model.folder)
        elif checkpoint_id(checkpoint) != model.checkpoint:
            require_match(load_spec(checkpoint / MODEL_YAML), snapshot, checkpoint)
            free_kept()
            model = load_model(replace(self.config, checkpoint=checkpoint), snapshot, self.device)
        if is_other:
            pair = serving_pair(snapshot, model, self.config, shown)
        elif model is served.model:
            return served
        else:
            pair = replace(served, model=model)
        # What is slow once belongs to the model. A snapshot alone needs to show that it works.
        return self._warm(pair, all_buckets=model is not served.model)

    def _with_changes(self, served: ServingPair) -> ServingPair:
        updates, snapshot, shown = self.updates, served.snapshot, served.shown
        if updates is None or shown.sequence >= updates.facts.last_change:
            return served
        if shown.sequence < updates.facts.rebased:
            version = snapshot.facts.version
            snapshot, shown = unchanged(self._version(version) if shown.changes else snapshot)
        try:
            snapshot, shown = with_changes(snapshot, shown, updates, self.device)
        finally:
            free_kept()  # what the new arrays did not use
        if snapshot is served.snapshot:
            return replace(served, shown=shown)
        return self._warm(changed_pair(served, snapshot, shown, self.config), all_buckets=False)

    def _version(self, version: int) -> Snapshot:
        free_kept()
        threads = max(1, available_cores() // CORES_PER_THREAD)
        return load_version(self.config, version, self.device, threads, READERS)

    def _changed(
        self, snapshot: Snapshot, served: ServingPair | None = None
    ) -> tuple[Snapshot, Shown]:
        """Return a version with the changes that it lacks. No version needs what it drops, nor does
        the served one, which serves on if this load fails."""
        found = unchanged(snapshot)
        if self.updates is None:
            return found
        lowest = lowest_watermark(self.config.snapshots)
        if served is not None:
            lowest = min(lowest, served.snapshot.facts.updates_watermark)
        self.updates.drop_changes(lowest)
        return with_changes(*found, self.updates, self.device)

    def _warm(self, pair: ServingPair, all_buckets: bool) -> ServingPair:
        generation = self.config.generation
        buckets = None if all_buckets else generation.batch_buckets[:1]
        # After each batch, live requests have the engine for as long as the batch took.
        warm_up(self.stages, pair, generation, self.requests, None, sleep, buckets)
        if self.updates is not None:
            self.updates.attach(pair)
        return pair

    def _fault_of(self, error: Exception, checkpoint: Path | None) -> LoadFault:
        """Return the fault without the error, whose traceback would keep the load's memory."""
        config = self.config
        if checkpoint is not None:
            config = replace(config, checkpoint=checkpoint)
        known = too_little_memory(error, config) or error
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
