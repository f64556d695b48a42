"""How long hostile input is tried: seconds in CI, the same cases each time; `make fuzz` tries many more, and new ones."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

ASKED = os.environ.get("CLEANRL_FUZZ_EXAMPLES")

HOSTILE_TEXT = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "",
            ".",
            "..",
            "../../etc/passwd",
            "/etc/passwd",
            "a/../../b",
            "\x00",
            "\x1b[2J",
            "\u202e",
            "${RUN_ID}",
            "x" * 5000,
        ]
    ),
)
HOSTILE_NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 1e308, -1e308, 5e-324, 10**400]),
)
HOSTILE_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | HOSTILE_NUMBERS | HOSTILE_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HOSTILE_TEXT, inner, max_size=4),
    max_leaves=8,
)


def budget(short: int) -> Any:
    """Hypothesis' settings: `short` examples in CI, as many as were asked for otherwise."""
    return settings(
        max_examples=int(ASKED or short),
        derandomize=ASKED is None,
        print_blob=True,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )
