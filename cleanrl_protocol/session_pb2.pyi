from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("run_id", "worker_id", "worker_kind", "proto_version", "schema_id", "schema_version", "supports_pause", "supports_checkpoint", "algo", "env_id", "extras_json", "capabilities_json", "attempt", "last_number", "log_epoch")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_KIND_FIELD_NUMBER: _ClassVar[int]
    PROTO_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_PAUSE_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ALGO_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    EXTRAS_JSON_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_JSON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LAST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker_id: str
    worker_kind: str
    proto_version: str
    schema_id: str
    schema_version: int
    supports_pause: bool
    supports_checkpoint: bool
    algo: str
    env_id: str
    extras_json: str
    capabilities_json: str
    attempt: int
    last_number: int
    log_epoch: int
    def __init__(self, run_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., worker_kind: _Optional[str] = ..., proto_version: _Optional[str] = ..., schema_id: _Optional[str] = ..., schema_version: _Optional[int] = ..., supports_pause: _Optional[bool] = ..., supports_checkpoint: _Optional[bool] = ..., algo: _Optional[str] = ..., env_id: _Optional[str] = ..., extras_json: _Optional[str] = ..., capabilities_json: _Optional[str] = ..., attempt: _Optional[int] = ..., last_number: _Optional[int] = ..., log_epoch: _Optional[int] = ...) -> None: ...

class RegisterWorkerReply(_message.Message):
    __slots__ = ("accepted_version", "session_token", "acknowledged", "desired", "credits", "heartbeat_seconds")
    ACCEPTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    accepted_version: str
    session_token: str
    acknowledged: int
    desired: Desired
    credits: int
    heartbeat_seconds: int
    def __init__(self, accepted_version: _Optional[str] = ..., session_token: _Optional[str] = ..., acknowledged: _Optional[int] = ..., desired: _Optional[_Union[Desired, _Mapping]] = ..., credits: _Optional[int] = ..., heartbeat_seconds: _Optional[int] = ...) -> None: ...

class Up(_message.Message):
    __slots__ = ("event", "flow")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    event: Event
    flow: Flow
    def __init__(self, event: _Optional[_Union[Event, _Mapping]] = ..., flow: _Optional[_Union[Flow, _Mapping]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("number", "after", "timestamp", "name", "lifecycle", "heartbeat", "scalars", "checkpoint")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    number: int
    after: int
    timestamp: float
    name: str
    lifecycle: Lifecycle
    heartbeat: Heartbeat
    scalars: Scalars
    checkpoint: Checkpoint
    def __init__(self, number: _Optional[int] = ..., after: _Optional[int] = ..., timestamp: _Optional[float] = ..., name: _Optional[str] = ..., lifecycle: _Optional[_Union[Lifecycle, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., scalars: _Optional[_Union[Scalars, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class Lifecycle(_message.Message):
    __slots__ = ("payload_json",)
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    payload_json: str
    def __init__(self, payload_json: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("payload_json",)
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    payload_json: str
    def __init__(self, payload_json: _Optional[str] = ...) -> None: ...

class Scalars(_message.Message):
    __slots__ = ("step", "total", "steps_per_second", "episodes", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    step: int
    total: int
    steps_per_second: float
    episodes: int
    values: _containers.ScalarMap[str, float]
    def __init__(self, step: _Optional[int] = ..., total: _Optional[int] = ..., steps_per_second: _Optional[float] = ..., episodes: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("path", "step", "sha256", "bytes", "seconds", "reason")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    path: str
    step: int
    sha256: str
    bytes: int
    seconds: float
    reason: str
    def __init__(self, path: _Optional[str] = ..., step: _Optional[int] = ..., sha256: _Optional[str] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("state", "number", "coalesced")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Flow.State]
        STARVED: _ClassVar[Flow.State]
        RESUMED: _ClassVar[Flow.State]
    STATE_UNSPECIFIED: Flow.State
    STARVED: Flow.State
    RESUMED: Flow.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COALESCED_FIELD_NUMBER: _ClassVar[int]
    state: Flow.State
    number: int
    coalesced: int
    def __init__(self, state: _Optional[_Union[Flow.State, str]] = ..., number: _Optional[int] = ..., coalesced: _Optional[int] = ...) -> None: ...

class Down(_message.Message):
    __slots__ = ("desired", "acknowledgement", "credits", "pace")
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    desired: Desired
    acknowledgement: Acknowledgement
    credits: Credits
    pace: Pace
    def __init__(self, desired: _Optional[_Union[Desired, _Mapping]] = ..., acknowledgement: _Optional[_Union[Acknowledgement, _Mapping]] = ..., credits: _Optional[_Union[Credits, _Mapping]] = ..., pace: _Optional[_Union[Pace, _Mapping]] = ...) -> None: ...

class Pace(_message.Message):
    __slots__ = ("next_seconds", "every_seconds")
    NEXT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EVERY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    next_seconds: float
    every_seconds: float
    def __init__(self, next_seconds: _Optional[float] = ..., every_seconds: _Optional[float] = ...) -> None: ...

class Desired(_message.Message):
    __slots__ = ("generation", "pause", "stop", "stop_reason", "checkpoint_request")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    generation: int
    pause: bool
    stop: bool
    stop_reason: str
    checkpoint_request: int
    def __init__(self, generation: _Optional[int] = ..., pause: _Optional[bool] = ..., stop: _Optional[bool] = ..., stop_reason: _Optional[str] = ..., checkpoint_request: _Optional[int] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Credits(_message.Message):
    __slots__ = ("granted",)
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    granted: int
    def __init__(self, granted: _Optional[int] = ...) -> None: ...
