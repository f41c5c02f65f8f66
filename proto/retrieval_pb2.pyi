from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RetrieveRequest(_message.Message):
    __slots__ = ("request_id", "model", "sid_space", "user", "features", "max_ads", "profile", "priority", "exclude_ads", "include_sids", "exclude", "at_most", "strict", "at", "utc_offset_minutes", "filters")
    class UserEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Values
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Values, _Mapping]] = ...) -> None: ...
    class ExcludeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Ids
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Ids, _Mapping]] = ...) -> None: ...
    class AtMostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FiltersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Filter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Filter, _Mapping]] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SID_SPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_ADS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_ADS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SIDS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    UTC_OFFSET_MINUTES_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    sid_space: str
    user: _containers.MessageMap[str, Values]
    features: Features
    max_ads: int
    profile: str
    priority: str
    exclude_ads: _containers.RepeatedScalarFieldContainer[int]
    include_sids: bool
    exclude: _containers.MessageMap[str, Ids]
    at_most: _containers.ScalarMap[str, int]
    strict: bool
    at: int
    utc_offset_minutes: int
    filters: _containers.MessageMap[str, Filter]
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., sid_space: _Optional[str] = ..., user: _Optional[_Mapping[str, Values]] = ..., features: _Optional[_Union[Features, _Mapping]] = ..., max_ads: _Optional[int] = ..., profile: _Optional[str] = ..., priority: _Optional[str] = ..., exclude_ads: _Optional[_Iterable[int]] = ..., include_sids: bool = ..., exclude: _Optional[_Mapping[str, Ids]] = ..., at_most: _Optional[_Mapping[str, int]] = ..., strict: bool = ..., at: _Optional[int] = ..., utc_offset_minutes: _Optional[int] = ..., filters: _Optional[_Mapping[str, Filter]] = ...) -> None: ...

class Values(_message.Message):
    __slots__ = ("values", "number")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    number: float
    def __init__(self, values: _Optional[_Iterable[str]] = ..., number: _Optional[float] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("any_of", "none_of", "unknown")
    class Unknown(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN_UNSPECIFIED: _ClassVar[Filter.Unknown]
        PASSES: _ClassVar[Filter.Unknown]
        BLOCKED: _ClassVar[Filter.Unknown]
    UNKNOWN_UNSPECIFIED: Filter.Unknown
    PASSES: Filter.Unknown
    BLOCKED: Filter.Unknown
    ANY_OF_FIELD_NUMBER: _ClassVar[int]
    NONE_OF_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    any_of: _containers.RepeatedScalarFieldContainer[str]
    none_of: _containers.RepeatedScalarFieldContainer[str]
    unknown: Filter.Unknown
    def __init__(self, any_of: _Optional[_Iterable[str]] = ..., none_of: _Optional[_Iterable[str]] = ..., unknown: _Optional[_Union[Filter.Unknown, str]] = ...) -> None: ...

class Features(_message.Message):
    __slots__ = ("dense", "categorical", "bags", "sequences", "tokens")
    class DenseEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Numbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Numbers, _Mapping]] = ...) -> None: ...
    class CategoricalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Ids
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Ids, _Mapping]] = ...) -> None: ...
    class BagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Ids
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Ids, _Mapping]] = ...) -> None: ...
    class SequencesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Events
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Events, _Mapping]] = ...) -> None: ...
    class TokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Ids
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Ids, _Mapping]] = ...) -> None: ...
    DENSE_FIELD_NUMBER: _ClassVar[int]
    CATEGORICAL_FIELD_NUMBER: _ClassVar[int]
    BAGS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    dense: _containers.MessageMap[str, Numbers]
    categorical: _containers.MessageMap[str, Ids]
    bags: _containers.MessageMap[str, Ids]
    sequences: _containers.MessageMap[str, Events]
    tokens: _containers.MessageMap[str, Ids]
    def __init__(self, dense: _Optional[_Mapping[str, Numbers]] = ..., categorical: _Optional[_Mapping[str, Ids]] = ..., bags: _Optional[_Mapping[str, Ids]] = ..., sequences: _Optional[_Mapping[str, Events]] = ..., tokens: _Optional[_Mapping[str, Ids]] = ...) -> None: ...

class Numbers(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Ids(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Events(_message.Message):
    __slots__ = ("sids", "timestamps_ms", "side")
    class SideEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Ids
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Ids, _Mapping]] = ...) -> None: ...
    SIDS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_MS_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    sids: _containers.RepeatedScalarFieldContainer[int]
    timestamps_ms: _containers.RepeatedScalarFieldContainer[int]
    side: _containers.MessageMap[str, Ids]
    def __init__(self, sids: _Optional[_Iterable[int]] = ..., timestamps_ms: _Optional[_Iterable[int]] = ..., side: _Optional[_Mapping[str, Ids]] = ...) -> None: ...

class RetrieveResponse(_message.Message):
    __slots__ = ("request_id", "ad_ids", "scores", "sids", "counts", "snapshot_version", "checkpoint", "timings", "ignored_names", "truncated", "degraded", "profile", "at")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AD_IDS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    SIDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    IGNORED_NAMES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    ad_ids: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    sids: Sids
    counts: Counts
    snapshot_version: int
    checkpoint: str
    timings: Timings
    ignored_names: _containers.RepeatedScalarFieldContainer[str]
    truncated: bool
    degraded: bool
    profile: str
    at: int
    def __init__(self, request_id: _Optional[str] = ..., ad_ids: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., sids: _Optional[_Union[Sids, _Mapping]] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ..., snapshot_version: _Optional[int] = ..., checkpoint: _Optional[str] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., ignored_names: _Optional[_Iterable[str]] = ..., truncated: bool = ..., degraded: bool = ..., profile: _Optional[str] = ..., at: _Optional[int] = ...) -> None: ...

class Sids(_message.Message):
    __slots__ = ("length", "tokens", "scores", "sid_of_ad")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    SID_OF_AD_FIELD_NUMBER: _ClassVar[int]
    length: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    sid_of_ad: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, length: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., sid_of_ad: _Optional[_Iterable[int]] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("sids_generated", "ads_generated", "ads_matched", "ads_returned", "ads_stopped", "ads_excluded", "ads_limited", "ads_failed")
    class AdsFailedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SIDS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    ADS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    ADS_MATCHED_FIELD_NUMBER: _ClassVar[int]
    ADS_RETURNED_FIELD_NUMBER: _ClassVar[int]
    ADS_STOPPED_FIELD_NUMBER: _ClassVar[int]
    ADS_EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    ADS_LIMITED_FIELD_NUMBER: _ClassVar[int]
    ADS_FAILED_FIELD_NUMBER: _ClassVar[int]
    sids_generated: int
    ads_generated: int
    ads_matched: int
    ads_returned: int
    ads_stopped: int
    ads_excluded: int
    ads_limited: int
    ads_failed: _containers.ScalarMap[str, int]
    def __init__(self, sids_generated: _Optional[int] = ..., ads_generated: _Optional[int] = ..., ads_matched: _Optional[int] = ..., ads_returned: _Optional[int] = ..., ads_stopped: _Optional[int] = ..., ads_excluded: _Optional[int] = ..., ads_limited: _Optional[int] = ..., ads_failed: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_us", "input_us", "features_us", "generate_us", "post_us")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    INPUT_US_FIELD_NUMBER: _ClassVar[int]
    FEATURES_US_FIELD_NUMBER: _ClassVar[int]
    GENERATE_US_FIELD_NUMBER: _ClassVar[int]
    POST_US_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    input_us: int
    features_us: int
    generate_us: int
    post_us: int
    def __init__(self, queue_us: _Optional[int] = ..., input_us: _Optional[int] = ..., features_us: _Optional[int] = ..., generate_us: _Optional[int] = ..., post_us: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("state", "server_version", "uptime_seconds", "device", "snapshot", "model", "profiles", "default_profile", "max_batch", "waiting", "max_waiting", "in_flight", "engine", "front_ends", "load", "updates")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[GetStatusResponse.State]
        STATE_STARTING: _ClassVar[GetStatusResponse.State]
        STATE_SERVING: _ClassVar[GetStatusResponse.State]
        STATE_DRAINING: _ClassVar[GetStatusResponse.State]
        STATE_FAILED: _ClassVar[GetStatusResponse.State]
    STATE_UNSPECIFIED: GetStatusResponse.State
    STATE_STARTING: GetStatusResponse.State
    STATE_SERVING: GetStatusResponse.State
    STATE_DRAINING: GetStatusResponse.State
    STATE_FAILED: GetStatusResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROFILE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    FRONT_ENDS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    state: GetStatusResponse.State
    server_version: str
    uptime_seconds: float
    device: str
    snapshot: SnapshotStatus
    model: ModelStatus
    profiles: _containers.RepeatedCompositeFieldContainer[ProfileStatus]
    default_profile: str
    max_batch: int
    waiting: int
    max_waiting: int
    in_flight: int
    engine: EngineStatus
    front_ends: int
    load: LoadStatus
    updates: UpdatesStatus
    def __init__(self, state: _Optional[_Union[GetStatusResponse.State, str]] = ..., server_version: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., device: _Optional[str] = ..., snapshot: _Optional[_Union[SnapshotStatus, _Mapping]] = ..., model: _Optional[_Union[ModelStatus, _Mapping]] = ..., profiles: _Optional[_Iterable[_Union[ProfileStatus, _Mapping]]] = ..., default_profile: _Optional[str] = ..., max_batch: _Optional[int] = ..., waiting: _Optional[int] = ..., max_waiting: _Optional[int] = ..., in_flight: _Optional[int] = ..., engine: _Optional[_Union[EngineStatus, _Mapping]] = ..., front_ends: _Optional[int] = ..., load: _Optional[_Union[LoadStatus, _Mapping]] = ..., updates: _Optional[_Union[UpdatesStatus, _Mapping]] = ...) -> None: ...

class LoadStatus(_message.Message):
    __slots__ = ("current_version", "loading_version", "pinned_version", "pinned_until_above", "fault", "failed_version")
    CURRENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOADING_VERSION_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    PINNED_UNTIL_ABOVE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    FAILED_VERSION_FIELD_NUMBER: _ClassVar[int]
    current_version: int
    loading_version: int
    pinned_version: int
    pinned_until_above: int
    fault: str
    failed_version: int
    def __init__(self, current_version: _Optional[int] = ..., loading_version: _Optional[int] = ..., pinned_version: _Optional[int] = ..., pinned_until_above: _Optional[int] = ..., fault: _Optional[str] = ..., failed_version: _Optional[int] = ...) -> None: ...

class UpdatesStatus(_message.Message):
    __slots__ = ("sequence", "stopped", "ads_stopped", "weights", "awaits_full", "source_fault", "visible", "ads_put", "ads_removed", "changes_waiting", "puts_refused", "changes_fault")
    class StoppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    ADS_STOPPED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    AWAITS_FULL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FAULT_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_FIELD_NUMBER: _ClassVar[int]
    ADS_PUT_FIELD_NUMBER: _ClassVar[int]
    ADS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_WAITING_FIELD_NUMBER: _ClassVar[int]
    PUTS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FAULT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    stopped: _containers.ScalarMap[str, int]
    ads_stopped: int
    weights: int
    awaits_full: bool
    source_fault: str
    visible: int
    ads_put: int
    ads_removed: int
    changes_waiting: int
    puts_refused: int
    changes_fault: str
    def __init__(self, sequence: _Optional[int] = ..., stopped: _Optional[_Mapping[str, int]] = ..., ads_stopped: _Optional[int] = ..., weights: _Optional[int] = ..., awaits_full: bool = ..., source_fault: _Optional[str] = ..., visible: _Optional[int] = ..., ads_put: _Optional[int] = ..., ads_removed: _Optional[int] = ..., changes_waiting: _Optional[int] = ..., puts_refused: _Optional[int] = ..., changes_fault: _Optional[str] = ...) -> None: ...

class SnapshotStatus(_message.Message):
    __slots__ = ("version", "created_at", "sid_space", "mode", "sids", "ads", "attributes", "sets", "entities", "updates_watermark", "eligibility_list_bytes", "eligibility_mask_bytes", "eligibility_ms", "ranges", "flights", "properties")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    SID_SPACE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SIDS_FIELD_NUMBER: _ClassVar[int]
    ADS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    ELIGIBILITY_LIST_BYTES_FIELD_NUMBER: _ClassVar[int]
    ELIGIBILITY_MASK_BYTES_FIELD_NUMBER: _ClassVar[int]
    ELIGIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    FLIGHTS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    version: int
    created_at: str
    sid_space: str
    mode: str
    sids: int
    ads: int
    attributes: _containers.RepeatedScalarFieldContainer[str]
    sets: _containers.RepeatedScalarFieldContainer[str]
    entities: _containers.RepeatedScalarFieldContainer[str]
    updates_watermark: int
    eligibility_list_bytes: int
    eligibility_mask_bytes: int
    eligibility_ms: float
    ranges: _containers.RepeatedScalarFieldContainer[str]
    flights: _containers.RepeatedScalarFieldContainer[str]
    properties: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., created_at: _Optional[str] = ..., sid_space: _Optional[str] = ..., mode: _Optional[str] = ..., sids: _Optional[int] = ..., ads: _Optional[int] = ..., attributes: _Optional[_Iterable[str]] = ..., sets: _Optional[_Iterable[str]] = ..., entities: _Optional[_Iterable[str]] = ..., updates_watermark: _Optional[int] = ..., eligibility_list_bytes: _Optional[int] = ..., eligibility_mask_bytes: _Optional[int] = ..., eligibility_ms: _Optional[float] = ..., ranges: _Optional[_Iterable[str]] = ..., flights: _Optional[_Iterable[str]] = ..., properties: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("checkpoint", "encoder", "vocab_sizes", "inputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    encoder: str
    vocab_sizes: _containers.RepeatedScalarFieldContainer[int]
    inputs: _containers.ScalarMap[str, str]
    def __init__(self, checkpoint: _Optional[str] = ..., encoder: _Optional[str] = ..., vocab_sizes: _Optional[_Iterable[int]] = ..., inputs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EngineStatus(_message.Message):
    __slots__ = ("precision", "memo_steps", "memo_bytes", "next_memo_bytes", "graphs", "capture_seconds", "gpu_memory_bytes", "fp8_products")
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    MEMO_STEPS_FIELD_NUMBER: _ClassVar[int]
    MEMO_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_MEMO_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FP8_PRODUCTS_FIELD_NUMBER: _ClassVar[int]
    precision: str
    memo_steps: int
    memo_bytes: int
    next_memo_bytes: int
    graphs: int
    capture_seconds: float
    gpu_memory_bytes: int
    fp8_products: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, precision: _Optional[str] = ..., memo_steps: _Optional[int] = ..., memo_bytes: _Optional[int] = ..., next_memo_bytes: _Optional[int] = ..., graphs: _Optional[int] = ..., capture_seconds: _Optional[float] = ..., gpu_memory_bytes: _Optional[int] = ..., fp8_products: _Optional[_Iterable[str]] = ...) -> None: ...

class ProfileStatus(_message.Message):
    __slots__ = ("name", "beams", "num_sids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEAMS_FIELD_NUMBER: _ClassVar[int]
    NUM_SIDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    beams: _containers.RepeatedScalarFieldContainer[int]
    num_sids: int
    def __init__(self, name: _Optional[str] = ..., beams: _Optional[_Iterable[int]] = ..., num_sids: _Optional[int] = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: str
    def __init__(self, level: _Optional[str] = ...) -> None: ...

class SetLogLevelResponse(_message.Message):
    __slots__ = ("previous",)
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    previous: str
    def __init__(self, previous: _Optional[str] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("snapshot_version", "checkpoint")
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    snapshot_version: int
    checkpoint: str
    def __init__(self, snapshot_version: _Optional[int] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class LoadResponse(_message.Message):
    __slots__ = ("snapshot_version", "checkpoint", "changed")
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    snapshot_version: int
    checkpoint: str
    changed: bool
    def __init__(self, snapshot_version: _Optional[int] = ..., checkpoint: _Optional[str] = ..., changed: bool = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("snapshot_version",)
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    snapshot_version: int
    def __init__(self, snapshot_version: _Optional[int] = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ("snapshot_version", "previous_version")
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    snapshot_version: int
    previous_version: int
    def __init__(self, snapshot_version: _Optional[int] = ..., previous_version: _Optional[int] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ("snapshot_version", "previous_pin")
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_PIN_FIELD_NUMBER: _ClassVar[int]
    snapshot_version: int
    previous_pin: int
    def __init__(self, snapshot_version: _Optional[int] = ..., previous_pin: _Optional[int] = ...) -> None: ...

class UpdateAdsRequest(_message.Message):
    __slots__ = ("sequence", "kind", "stop", "resume", "weights", "unweight", "put", "remove", "wait_visible", "part", "parts", "changed_at")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[UpdateAdsRequest.Kind]
        KIND_DELTA: _ClassVar[UpdateAdsRequest.Kind]
        KIND_FULL: _ClassVar[UpdateAdsRequest.Kind]
    KIND_UNSPECIFIED: UpdateAdsRequest.Kind
    KIND_DELTA: UpdateAdsRequest.Kind
    KIND_FULL: UpdateAdsRequest.Kind
    class StopEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Ids
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Ids, _Mapping]] = ...) -> None: ...
    class ResumeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Ids
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Ids, _Mapping]] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    UNWEIGHT_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    WAIT_VISIBLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: UpdateAdsRequest.Kind
    stop: _containers.MessageMap[str, Ids]
    resume: _containers.MessageMap[str, Ids]
    weights: _containers.RepeatedCompositeFieldContainer[AdWeight]
    unweight: _containers.RepeatedScalarFieldContainer[int]
    put: _containers.RepeatedScalarFieldContainer[str]
    remove: _containers.RepeatedScalarFieldContainer[int]
    wait_visible: bool
    part: int
    parts: int
    changed_at: int
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[_Union[UpdateAdsRequest.Kind, str]] = ..., stop: _Optional[_Mapping[str, Ids]] = ..., resume: _Optional[_Mapping[str, Ids]] = ..., weights: _Optional[_Iterable[_Union[AdWeight, _Mapping]]] = ..., unweight: _Optional[_Iterable[int]] = ..., put: _Optional[_Iterable[str]] = ..., remove: _Optional[_Iterable[int]] = ..., wait_visible: bool = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., changed_at: _Optional[int] = ...) -> None: ...

class AdWeight(_message.Message):
    __slots__ = ("ad_id", "weight")
    AD_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ad_id: int
    weight: float
    def __init__(self, ad_id: _Optional[int] = ..., weight: _Optional[float] = ...) -> None: ...

class UpdateAdsResponse(_message.Message):
    __slots__ = ("sequence", "applied", "ads_stopped", "unknown", "visible", "refused")
    class UnknownEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: UnknownIds
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[UnknownIds, _Mapping]] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ADS_STOPPED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    applied: bool
    ads_stopped: int
    unknown: _containers.MessageMap[str, UnknownIds]
    visible: int
    refused: _containers.RepeatedCompositeFieldContainer[RefusedPut]
    def __init__(self, sequence: _Optional[int] = ..., applied: bool = ..., ads_stopped: _Optional[int] = ..., unknown: _Optional[_Mapping[str, UnknownIds]] = ..., visible: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[RefusedPut, _Mapping]]] = ...) -> None: ...

class RefusedPut(_message.Message):
    __slots__ = ("place", "ad_id", "fault")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    AD_ID_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    place: int
    ad_id: int
    fault: str
    def __init__(self, place: _Optional[int] = ..., ad_id: _Optional[int] = ..., fault: _Optional[str] = ...) -> None: ...

class UnknownIds(_message.Message):
    __slots__ = ("count", "ids")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    count: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, count: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ConfirmUpdatesRequest(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class ConfirmUpdatesResponse(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class GetStopsRequest(_message.Message):
    __slots__ = ("level", "after")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    level: str
    after: int
    def __init__(self, level: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class GetStopsResponse(_message.Message):
    __slots__ = ("ids", "sequence")
    IDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    sequence: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., sequence: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("ad_id", "request")
    AD_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ad_id: int
    request: RetrieveRequest
    def __init__(self, ad_id: _Optional[int] = ..., request: _Optional[_Union[RetrieveRequest, _Mapping]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("outcome", "text", "ad_id", "snapshot_version", "checkpoint", "profile", "sid", "stops", "rules", "steps", "excluded_by", "limited_by", "rank", "ranked_ads", "score", "ignored_names")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[ExplainResponse.Outcome]
        OUTCOME_RETURNED: _ClassVar[ExplainResponse.Outcome]
        OUTCOME_NOT_IN_CATALOGUE: _ClassVar[ExplainResponse.Outcome]
        OUTCOME_STOPPED: _ClassVar[ExplainResponse.Outcome]
        OUTCOME_NOT_ELIGIBLE: _ClassVar[ExplainResponse.Outcome]
        OUTCOME_MASKED: _ClassVar[ExplainResponse.Outcome]
        OUTCOME_OUT_OF_BEAM: _ClassVar[ExplainResponse.Outcome]
        OUTCOME_EXCLUDED: _ClassVar[ExplainResponse.Outcome]
        OUTCOME_AT_MOST: _ClassVar[ExplainResponse.Outcome]
        OUTCOME_MAX_ADS: _ClassVar[ExplainResponse.Outcome]
    OUTCOME_UNSPECIFIED: ExplainResponse.Outcome
    OUTCOME_RETURNED: ExplainResponse.Outcome
    OUTCOME_NOT_IN_CATALOGUE: ExplainResponse.Outcome
    OUTCOME_STOPPED: ExplainResponse.Outcome
    OUTCOME_NOT_ELIGIBLE: ExplainResponse.Outcome
    OUTCOME_MASKED: ExplainResponse.Outcome
    OUTCOME_OUT_OF_BEAM: ExplainResponse.Outcome
    OUTCOME_EXCLUDED: ExplainResponse.Outcome
    OUTCOME_AT_MOST: ExplainResponse.Outcome
    OUTCOME_MAX_ADS: ExplainResponse.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AD_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_BY_FIELD_NUMBER: _ClassVar[int]
    LIMITED_BY_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RANKED_ADS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    IGNORED_NAMES_FIELD_NUMBER: _ClassVar[int]
    outcome: ExplainResponse.Outcome
    text: str
    ad_id: int
    snapshot_version: int
    checkpoint: str
    profile: str
    sid: _containers.RepeatedScalarFieldContainer[int]
    stops: _containers.RepeatedCompositeFieldContainer[LevelId]
    rules: _containers.RepeatedCompositeFieldContainer[TargetingRule]
    steps: _containers.RepeatedCompositeFieldContainer[SearchStep]
    excluded_by: _containers.RepeatedCompositeFieldContainer[LevelId]
    limited_by: LevelId
    rank: int
    ranked_ads: int
    score: float
    ignored_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, outcome: _Optional[_Union[ExplainResponse.Outcome, str]] = ..., text: _Optional[str] = ..., ad_id: _Optional[int] = ..., snapshot_version: _Optional[int] = ..., checkpoint: _Optional[str] = ..., profile: _Optional[str] = ..., sid: _Optional[_Iterable[int]] = ..., stops: _Optional[_Iterable[_Union[LevelId, _Mapping]]] = ..., rules: _Optional[_Iterable[_Union[TargetingRule, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[SearchStep, _Mapping]]] = ..., excluded_by: _Optional[_Iterable[_Union[LevelId, _Mapping]]] = ..., limited_by: _Optional[_Union[LevelId, _Mapping]] = ..., rank: _Optional[int] = ..., ranked_ads: _Optional[int] = ..., score: _Optional[float] = ..., ignored_names: _Optional[_Iterable[str]] = ...) -> None: ...

class LevelId(_message.Message):
    __slots__ = ("level", "id")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    level: str
    id: int
    def __init__(self, level: _Optional[str] = ..., id: _Optional[int] = ...) -> None: ...

class TargetingRule(_message.Message):
    __slots__ = ("name", "passes", "allows", "user", "deciding")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    ALLOWS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    DECIDING_FIELD_NUMBER: _ClassVar[int]
    name: str
    passes: bool
    allows: str
    user: _containers.RepeatedScalarFieldContainer[str]
    deciding: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., passes: bool = ..., allows: _Optional[str] = ..., user: _Optional[_Iterable[str]] = ..., deciding: _Optional[_Iterable[str]] = ...) -> None: ...

class SearchStep(_message.Message):
    __slots__ = ("token", "admitted", "kept", "score", "rank", "candidates", "beams", "lowest_score")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    BEAMS_FIELD_NUMBER: _ClassVar[int]
    LOWEST_SCORE_FIELD_NUMBER: _ClassVar[int]
    token: int
    admitted: bool
    kept: bool
    score: float
    rank: int
    candidates: int
    beams: int
    lowest_score: float
    def __init__(self, token: _Optional[int] = ..., admitted: bool = ..., kept: bool = ..., score: _Optional[float] = ..., rank: _Optional[int] = ..., candidates: _Optional[int] = ..., beams: _Optional[int] = ..., lowest_score: _Optional[float] = ...) -> None: ...
