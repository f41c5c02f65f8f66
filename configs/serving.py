"""A server's configuration file, section by section, with every default.

The text in each `Annotated` is the meaning that docs/operations.md prints: `make fix` copies it.
"""

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from grace.configs.eligibility import Eligibility
from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.configs.sections import load_section
from grace.configs.yaml_loader import read_yaml

PrecisionSetting: TypeAlias = Literal["auto", "fp32", "bf16", "fp16", "fp8"]
Fp8Product: TypeAlias = Literal["qkv", "self_out", "cross_q", "cross_out", "feed_forward"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

MAX_PORT = 65535
_ENDPOINT = re.compile(r"https?://[^/\s]+:\d{1,5}/?")
MAX_FRONT_ENDS = 32
MAX_SECONDS = 86_400.0
MAX_MESSAGE_BYTES = 256 << 20
MAX_MEMO_BYTES = 1 << 50
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
class ListenConfig:
    """Where clients reach the server, and how it shuts down."""

    host: Annotated[str, "address that Retrieve, health and reflection listen on"] = "127.0.0.1"
    port: Annotated[int, "0: a free port, which the log names"] = 50051
    tls: Annotated[TlsConfig | None, "without it, connections are plaintext"] = None
    token_file: Annotated[
        Path | None, "tokens, one per line; if given, every Retrieve call needs one of them"
    ] = None
    reflection: Annotated[bool, "answer gRPC reflection, which grpcurl and ghz use"] = True
    front_ends: Annotated[
        int, "processes that hold client connections for the server; 0: it holds them itself"
    ] = 0
    linger_seconds: Annotated[
        float,
        "seconds after SIGTERM during which health says NOT_SERVING and calls are still taken",
    ] = 1.0
    drain_seconds: Annotated[float, "seconds for calls under way to finish after that"] = 20.0
    reply_seconds: Annotated[
        float,
        "seconds for a caller to send its request, and again to read the reply; the server then "
        "resets the call",
    ] = 10.0
    connection_seconds: Annotated[
        float,
        "age in seconds at which a connection takes no new calls, and its client reconnects",
    ] = 300.0
    idle_seconds: Annotated[
        float, "seconds without a call after which the server closes a connection"
    ] = 60.0

    def __post_init__(self) -> None:
        _require_port(self.port)
        _require_within(self, 0, MAX_FRONT_ENDS, "front_ends")
        _require_within(self, 0, MAX_SECONDS, "linger_seconds", "drain_seconds")
        _require_within(
            self, 0.1, MAX_SECONDS, "reply_seconds", "connection_seconds", "idle_seconds"
        )


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """Where operators reach the server. Admin discloses the catalogue: keep it on loopback."""

    host: Annotated[str, "address of Admin; beyond loopback it needs tls.client_ca"] = "127.0.0.1"
    port: Annotated[int, "0: a free port, which the log names"] = 50052
    tls: Annotated[TlsConfig | None, "without it, connections are plaintext"] = None

    def __post_init__(self) -> None:
        _require_port(self.port)


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Where Prometheus scrapes."""

    host: Annotated[str, "address of GET /metrics"] = "127.0.0.1"
    port: Annotated[int, "0: a free port, which the log names"] = 9464

    def __post_init__(self) -> None:
        _require_port(self.port)


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """How requests wait and form batches."""

    max_waiting: Annotated[
        int, "most requests that may wait; the server refuses one more at once"
    ] = 256
    max_wait_ms: Annotated[float, "milliseconds that a batch may wait to fill"] = 0.0
    target_queue_ms: Annotated[
        float,
        "once the predicted wait has been longer than this for this long, the server refuses "
        "requests that would wait longer; it counts as at least the time of two full batches",
    ] = 250.0
    hang_seconds: Annotated[
        float,
        "most seconds that a stage may work on one batch; the stage then dies and ends the server",
    ] = 60.0

    def __post_init__(self) -> None:
        _require_within(self, 1, 65_536, "max_waiting")
        _require_within(self, 1, MAX_SECONDS, "hang_seconds")
        _require_within(self, 1, 600_000, "target_queue_ms")
        _require_within(self, 0, 60_000, "max_wait_ms")


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Limits of one request. The server refuses a request beyond a limit and never cuts one."""

    max_ads: Annotated[int, "largest max_ads"] = 10_000
    default_max_ads: Annotated[int, "max_ads of a request that gives none"] = 500
    exclude_ads: Annotated[int, "most ids in exclude_ads and exclude together"] = 10_000
    message_bytes: Annotated[
        int, "encoded size of a request; reading 256 KiB takes the event loop up to 5 ms"
    ] = 1 << 18
    request_id_bytes: Annotated[int, "UTF-8 size of request_id"] = 128
    names: Annotated[
        int,
        "attributes and sets in user; also inputs in features, side inputs included, and entities "
        "in exclude and in at_most",
    ] = 256
    user_values: Annotated[int, "values of all attributes and sets in user, in total"] = 4096
    values_per_name: Annotated[int, "values of one attribute or set, ids of one bag"] = 4096
    value_bytes: Annotated[int, "UTF-8 size of a name or a value"] = 1024
    events: Annotated[int, "events in one sequence"] = 16_384
    open_calls: Annotated[
        int, "calls open at once, including those whose callers do not read their replies"
    ] = 4096
    connection_calls: Annotated[
        int, "open calls of one connection; further ones wait at the client"
    ] = 64
    connections: Annotated[
        int,
        "open connections of each process that holds them; the server closes further ones. The "
        "same number bounds health watches, reflection streams, and calls without a request",
    ] = 1024

    def __post_init__(self) -> None:
        _require_within(self, 0, 1_000_000, "exclude_ads")
        _require_within(self, 1, MAX_MESSAGE_BYTES, "message_bytes")
        _require_within(self, 1, 4096, "request_id_bytes")
        _require_within(self, 1, 65_536, "names", "value_bytes")
        _require_within(self, 1, 1_000_000, "max_ads", "default_max_ads", "user_values")
        _require_within(self, 1, 1_000_000, "values_per_name", "events", "open_calls")
        _require_within(self, 1, 1_000_000, "connection_calls", "connections")
        if self.default_max_ads > self.max_ads:
            raise ConfigError(
                f"default_max_ads: {self.default_max_ads} is more than max_ads, {self.max_ads}"
            )


@dataclass(frozen=True, slots=True)
class ThreadsConfig:
    """Threads in addition to one per stage and one for the event loop."""

    torch: Annotated[int, "threads of torch's operations on the CPU"] = 1
    post: Annotated[int, "threads that match a batch's ads"] = 2

    def __post_init__(self) -> None:
        _require_within(self, 1, 512, "torch", "post")


@dataclass(frozen=True, slots=True)
class LogsConfig:
    """The log on standard error. It never holds attribute values, features or SIDs."""

    format: Annotated[Literal["text", "json"], "text for people, or one JSON object a line"] = (
        "text"
    )
    level: Annotated[LogLevel, "the lowest level that is written"] = "info"
    requests: Annotated[bool, "a line for every request: id, code, reason, timings"] = False


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """OpenTelemetry traces of Retrieve calls; off unless there is an endpoint."""

    endpoint: Annotated[
        str | None,
        "OTLP collector (gRPC), such as http://127.0.0.1:4317; it needs the extra `traces`",
    ] = None
    follow_callers: Annotated[
        bool,
        "trace a call with the header traceparent if, and only if, its caller traces it; so any "
        "caller can have its calls traced, up to most_waiting a second",
    ] = True
    sample: Annotated[float, "share of the other calls that is traced"] = 0.01
    most_waiting: Annotated[
        int,
        "most traced calls that may wait for the collector, and so the most in a second; the "
        "server drops further ones",
    ] = 2048

    def __post_init__(self) -> None:
        _require_within(self, 0, 1, "sample")
        _require_within(self, 1, 65_536, "most_waiting")
        if self.endpoint is not None and not _ENDPOINT.fullmatch(self.endpoint):
            raise ConfigError(
                f"endpoint: must be http://HOST:PORT or https://HOST:PORT, got {self.endpoint}"
            )


@dataclass(frozen=True, slots=True)
class UpdatesConfig:
    """Stops and weights of ads, which take effect while the server runs."""

    require_full: Annotated[
        bool, "a server that has no updates yet becomes ready only after a FULL one"
    ] = False
    file: Annotated[
        Path | None,
        "JSON lines, each an UpdateAdsRequest, that the server follows; it then refuses UpdateAds",
    ] = None


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """A server's configuration file. The command line may replace the two folders."""

    snapshots: Annotated[Path, "folder that holds snapshot versions and CURRENT"]
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
        "the model's number format; auto: fp32 on a CPU, which has no other, bf16 on a GPU",
    ] = "auto"
    fp8_keep: Annotated[
        tuple[Fp8Product, ...], "products of the decoder that stay in bf16 with precision fp8"
    ] = ()
    memo_bytes: Annotated[
        int, "most GPU memory, in bytes, for what the first steps compute once for every prefix"
    ] = 4 << 30
    warm_up: Annotated[
        Path | None, "requests to warm up with, as JSON lines; without it, empty requests"
    ] = None
    state_dir: Annotated[
        Path | None,
        "local folder, of this server alone, for what must outlast a restart: updates of ads and a "
        "rollback's pin; without it, the server refuses both",
    ] = None
    watch_seconds: Annotated[
        float,
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
    traces: TracesConfig = field(default_factory=TracesConfig)

    def __post_init__(self) -> None:
        Eligibility.of(self.eligibility)
        _require_within(self, 0, MAX_MEMO_BYTES, "memo_bytes")
        _require_within(self, 0, MAX_SECONDS, "watch_seconds")
        if self.fp8_keep and self.precision != "fp8":
            raise ConfigError(
                f"fp8_keep: has no effect with precision {self.precision}; set precision: fp8, or "
                "remove it"
            )
        if len({*self.fp8_keep}) < len(self.fp8_keep):
            raise ConfigError(
                f"fp8_keep: {', '.join(self.fp8_keep)}: has a product twice; name each once"
            )
        if len(self.fp8_keep) == len(get_args(Fp8Product)):
            raise ConfigError(
                "fp8_keep: keeps every product, so nothing is in fp8; set precision: bf16"
            )
        if self.state_dir is None and (self.updates.require_full or self.updates.file is not None):
            given = "file" if self.updates.file is not None else "require_full"
            raise ConfigError(
                f"updates.{given}: needs a folder that keeps updates; set state_dir, or remove it"
            )


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


def _require_port(port: int) -> None:
    if not 0 <= port <= MAX_PORT:
        raise ConfigError(f"port: must be 0 to {MAX_PORT}, got {port}")


def _require_within(section: object, least: float, most: float, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        if value < least:
            raise ConfigError(f"{name}: must be at least {least}, got {value}")
        if value > most:
            raise ConfigError(f"{name}: must be at most {most}, got {value}")
