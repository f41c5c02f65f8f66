"""A server's configuration file, section by section, with every default.

`Annotated` has a setting's bounds, and its meaning, which `make fix` copies to docs/settings.md.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from grace.configs.eligibility import Eligibility
from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.configs.options import Fp8Product, Option
from grace.configs.sections import Section, load_section
from grace.configs.yaml_loader import read_yaml

PrecisionSetting: TypeAlias = Literal["auto", "fp32", "bf16", "fp8"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

MOST, DAY = 1_000_000, 86_400  # of what one request may have; seconds
Port: TypeAlias = Annotated[int, Option(least=0, most=65_535)]
Seconds: TypeAlias = Annotated[float, Option(least=0, most=DAY)]
Patience: TypeAlias = Annotated[float, Option(least=0.1, most=DAY)]
Places: TypeAlias = Annotated[int, Option(least=1, most=65_536)]
Count: TypeAlias = Annotated[int, Option(least=1, most=MOST)]
Threads: TypeAlias = Annotated[int, Option(least=1, most=512)]

DEFAULT_VOCAB = 64  # stands for a checkpoint that cannot be read, until its load reports the fault


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files, which the server reads again when they change."""

    certificate: Annotated[
        Path, "the server's certificate, followed by any intermediate certificates"
    ]
    key: Annotated[Path, "the private key of that certificate, without a passphrase"]
    client_ca: Annotated[
        Path | None, "CAs of clients; if given, every client needs a certificate from one of them"
    ] = None


@dataclass(frozen=True, slots=True)
class ListenConfig(Section):
    """Where clients reach the server, and how it shuts down."""

    host: Annotated[str, "address that Retrieve, health and reflection listen on"] = "127.0.0.1"
    port: Annotated[Port, "0: a free port, which the log names"] = 50051
    tls: Annotated[TlsConfig | None, "without it, connections are plaintext"] = None
    reflection: Annotated[bool, "answer gRPC reflection, which grpcurl and ghz use"] = True
    front_ends: Annotated[
        int,
        Option(least=0, most=32),
        "processes that hold client connections for the server; 0: it holds them itself",
    ] = 0
    linger_seconds: Annotated[
        Seconds,
        "seconds after SIGTERM during which health says NOT_SERVING and calls are still taken",
    ] = 1.0
    drain_seconds: Annotated[Seconds, "seconds for calls under way to finish after that"] = 20.0
    reply_seconds: Annotated[
        Patience,
        "seconds for a caller to send its request, and again to read the reply; the server then "
        "resets the call",
    ] = 10.0
    connection_seconds: Annotated[
        Patience,
        "age in seconds at which a connection takes no new calls, and its client reconnects",
    ] = 300.0
    idle_seconds: Annotated[
        Patience, "seconds without a call after which the server closes a connection"
    ] = 60.0


@dataclass(frozen=True, slots=True)
class AdminConfig(Section):
    """Where operators reach the server. Admin discloses the catalogue: keep it on loopback."""

    host: Annotated[str, "address of Admin; beyond loopback it needs tls.client_ca"] = "127.0.0.1"
    port: Annotated[Port, "0: a free port, which the log names"] = 50052
    tls: Annotated[TlsConfig | None, "without it, connections are plaintext"] = None


@dataclass(frozen=True, slots=True)
class MetricsConfig(Section):
    """Where Prometheus scrapes."""

    host: Annotated[str, "address of GET /metrics"] = "127.0.0.1"
    port: Annotated[Port, "0: a free port, which the log names"] = 9464


@dataclass(frozen=True, slots=True)
class BatchingConfig(Section):
    """How requests wait and form batches."""

    max_waiting: Annotated[
        Places, "most requests that may wait; the server refuses one more at once"
    ] = 256
    max_wait_ms: Annotated[
        float, Option(least=0, most=60_000), "ms that a batch may wait to fill, which rarely helps"
    ] = 0.0
    target_queue_ms: Annotated[
        float,
        Option(least=1, most=600_000),
        "once the predicted wait has been longer than this for this long, the server refuses "
        "requests that would wait longer; it counts as at least the time of two full batches",
    ] = 250.0
    hang_seconds: Annotated[
        float,
        Option(least=1, most=DAY),
        "most seconds that a stage may work on one batch; the stage then dies and ends the server",
    ] = 60.0


@dataclass(frozen=True, slots=True)
class LimitsConfig(Section):
    """Limits of one request. The server refuses a request beyond a limit and never cuts one."""

    max_ads: Annotated[Count, "largest max_ads"] = 10_000
    default_max_ads: Annotated[Count, "max_ads of a request that gives none"] = 500
    exclude_ads: Annotated[
        int, Option(least=0, most=MOST), "most ids in exclude_ads and exclude together"
    ] = 10_000
    message_bytes: Annotated[
        int,
        Option(least=1, most=256 << 20),
        "encoded size of a request; reading 256 KiB takes the event loop up to 10 ms",
    ] = 1 << 18
    request_id_bytes: Annotated[int, Option(least=1, most=4096), "UTF-8 size of request_id"] = 128
    names: Annotated[
        Places,
        "names in user; also inputs in features, side inputs included, entities in exclude and in "
        "at_most, and properties in filters",
    ] = 256
    user_values: Annotated[Count, "values of all attributes and sets in user, in total"] = 4096
    values_per_name: Annotated[Count, "values of one attribute or set, ids of one bag"] = 4096
    filter_values: Annotated[Count, "values in any_of of one filter, and in its none_of"] = 10_000
    value_bytes: Annotated[Places, "UTF-8 size of a name or a value"] = 1024
    events: Annotated[Count, "events in one sequence, or token ids in one prompt"] = 16_384
    open_calls: Annotated[
        Count, "calls open at once, including those whose callers do not read their replies"
    ] = 4096
    connection_calls: Annotated[
        Count, "open calls of one connection; further ones wait at the client"
    ] = 64
    connections: Annotated[
        Count,
        "open connections of each process that holds them; the server closes further ones. The "
        "same number bounds health watches, reflection streams, and calls without a request",
    ] = 1024

    def faults(self) -> Iterable[str]:
        if self.default_max_ads > self.max_ads:
            yield f"default_max_ads: {self.default_max_ads} is more than max_ads, {self.max_ads}"


@dataclass(frozen=True, slots=True)
class ThreadsConfig(Section):
    """Threads in addition to one per stage and one for the event loop."""

    torch: Annotated[Threads, "threads of torch's operations on the CPU"] = 1
    post: Annotated[Threads, "threads that match a batch's ads"] = 2


@dataclass(frozen=True, slots=True)
class LogsConfig:
    """The log on standard error. It never holds attribute values, features or SIDs."""

    format: Annotated[Literal["text", "json"], "text for people, or one JSON object a line"] = (
        "text"
    )
    level: Annotated[LogLevel, "the lowest level that is written"] = "info"
    requests: Annotated[bool, "a line for every request: id, code, reason, timings"] = False


@dataclass(frozen=True, slots=True)
class UpdatesConfig(Section):
    """Stops, weights and new ads, which take effect while the server runs."""

    require_full: Annotated[
        bool, "a server that has no updates yet becomes ready only after a FULL one"
    ] = False
    await_sender: Annotated[
        bool, "the server becomes ready only after `grace admin follow` has sent its whole file"
    ] = False
    min_interval_ms: Annotated[
        int,
        Option(least=0, most=3_600_000),
        "shortest time from when the server begins to apply puts and removals until it does again",
    ] = 1000


@dataclass(frozen=True, slots=True)
class ServingConfig(Section):
    """A server's configuration file. The command line may replace the two folders."""

    snapshots: Annotated[
        Path, "folder that holds snapshot versions and CURRENT; or one version, which it then keeps"
    ]
    checkpoint: Annotated[Path, "folder of model.yaml and model.safetensors"]
    generation: Annotated[GenerationConfig, "beam profiles and the largest batch"] = field(
        metadata={"default": "64 beams, fitted to the checkpoint"}
    )
    eligibility: Annotated[
        str,
        "what decoding tests at each node of the trie: `exact`, `cd` (nothing), `union`, `static` "
        "or `dynamic`, also as `static:64,64,32,8` and `dynamic:0.25,32` "
        "([targeting.md](targeting.md#what-decoding-tests))",
    ] = "exact"
    device: Annotated[str, "the device that torch computes on: cpu, or cuda:0"] = "cpu"
    precision: Annotated[
        PrecisionSetting,
        "the model's number format; auto: fp32 on a CPU, which has no other, bf16 on a GPU; fp8 "
        "needs an H100 or H200, and decoder widths that are multiples of 128",
    ] = "auto"
    fp8_keep: Annotated[
        tuple[Fp8Product, ...], "products of the decoder that stay in bf16 with precision fp8"
    ] = ()
    memo_bytes: Annotated[
        int,
        Option(least=0, most=1 << 50),
        "most GPU memory, in bytes, for what the first steps compute once for every prefix",
    ] = 4 << 30
    warm_up: Annotated[
        Path | None, "requests to warm up with, as JSON lines like yours; without it, empty ones"
    ] = None
    state_dir: Annotated[
        Path | None,
        "local folder, of this server alone, for what must outlast a restart: updates of ads and a "
        "rollback's pin; without it, the server refuses both",
    ] = None
    watch_seconds: Annotated[
        Seconds,
        "seconds between two looks at CURRENT; 0: the server looks only when `grace admin load`, "
        "`grace admin unpin` or SIGHUP asks it to",
    ] = 1.0
    updates: UpdatesConfig = field(default_factory=UpdatesConfig)
    listen: ListenConfig = field(default_factory=ListenConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    threads: ThreadsConfig = field(default_factory=ThreadsConfig)
    logs: LogsConfig = field(default_factory=LogsConfig)

    def faults(self) -> Iterable[str]:
        Eligibility.of(self.eligibility)
        kept = self.fp8_keep
        if kept and self.precision != "fp8":
            yield (
                f"fp8_keep: has no effect with precision {self.precision}; set precision: fp8, or "
                "remove it"
            )
        if len({*kept}) < len(kept):
            yield f"fp8_keep: {', '.join(kept)}: has a product twice; name each once"
        if len(kept) == len(get_args(Fp8Product)):
            yield "fp8_keep: keeps every product, so nothing is in fp8; set precision: bf16"
        for name in ("require_full", "await_sender"):
            if self.state_dir is None and getattr(self.updates, name):
                needs = f"needs a folder that keeps updates; set state_dir, or remove {name}"
                yield f"updates.{name}: {needs}"


def load_serving_config(
    path: Path | None,
    snapshots: Path | None = None,
    checkpoint: Path | None = None,
    state_dir: Path | None = None,
) -> ServingConfig:
    """Read the file; a folder given here replaces the one that it names.

    Without a file, every setting has its default. Without `generation`, beams fit the checkpoint.
    """
    values = {} if path is None else dict(read_yaml(path))
    source = "the defaults" if path is None else str(path)
    folders = {"snapshots": snapshots, "checkpoint": checkpoint, "state_dir": state_dir}
    for name, folder in folders.items():
        if folder is not None:
            values[name] = str(folder)
        elif name != "state_dir" and name not in values:
            remedy = "" if path is None else "add it, or "
            raise ConfigError(f"{source}: missing key {name!r}; {remedy}give --{name}")
    if "generation" not in values and isinstance(values["checkpoint"], str):
        fitting = GenerationConfig.fitting(_vocab_sizes(Path(values["checkpoint"])))
        values["generation"] = asdict(fitting)
    return load_section(ServingConfig, values, source)


def _vocab_sizes(checkpoint: Path) -> tuple[int, ...]:
    """Read only what beams depend on; the load of the checkpoint reports every fault of it."""
    try:
        sizes = read_yaml(checkpoint / "model.yaml").get("vocab_sizes")
    except ConfigError:
        sizes = None
    found = [n for n in sizes if isinstance(n, int) and n > 0] if isinstance(sizes, list) else []
    return tuple(found) or (DEFAULT_VOCAB,)
