"""The figures that both ends of a session agree on, each in one place."""

from __future__ import annotations

from typing import Any

PROTO_VERSION = "MOSAIC/1.0"
SESSION_METADATA_KEY = "cleanrl-session"
"""Metadata key of the session token on every call after RegisterWorker."""

MAX_MESSAGE_BYTES = 256 * 1024
"""No message of either side is larger; the transport refuses more before it is parsed."""
MAX_PAYLOAD_BYTES = 128 * 1024
"""An event whose payload is larger travels shortened, and says so."""
MAX_SCALARS = 64
"""Headline figures in one message."""
MAX_NAME = 128
"""Characters in an event's or a scalar's name."""
LAST_NUMBER = 2**63 - 1
"""The largest number that an event can have. Nobody gets there by counting; a log in which it is planted stays readable."""

REGISTER_SECONDS = 10.0
"""A gateway that has not answered RegisterWorker by then counts as absent."""
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
"""The longest pause of a worker between two attempts to reach its gateway, jitter included."""
KEEPALIVE_SECONDS = 20
KEEPALIVE_TIMEOUT_SECONDS = 10
LONGEST_ABSENCE_SECONDS = KEEPALIVE_SECONDS + KEEPALIVE_TIMEOUT_SECONDS + LONGEST_BACKOFF_SECONDS + REGISTER_SECONDS
"""A healthy worker is back by then after its gateway returned, even when the cut was silent. Whoever judges a worker's
silence after a restart of the gateway has to wait longer than this."""

INITIAL_CREDITS = 200
CREDIT_CAP = 400

CLIENT_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_http_proxy", 0),  # a proxy meant for W&B must not swallow the session
    ("grpc.enable_retries", 0),  # retries are the session's own business: it has to register first
    ("grpc.use_local_subchannel_pool", 1),  # no back-off inherited from an earlier channel
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
    ("grpc.http2.max_pings_without_data", 0),
]
SERVER_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 1000 // 2),
    ("grpc.so_reuseport", 0),  # a port that is taken is an error, not a second listener
]

RUN_FOLDER, DISK_FULL = "RunFolder", "DiskFull"
"""A termination record's reasons for a run's folder that can't be written, and for one that is full."""
NO_CHECKPOINT = "NoCheckpoint"
"""A termination record's reason where what the run was to start from is not there."""
