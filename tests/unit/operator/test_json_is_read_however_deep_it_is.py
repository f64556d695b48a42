"""What one tenant nests too deeply for the parser is left out of it; all that lies beside it is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cleanrl_operator.nesting import DEEPEST, MOST_LEVELS, is_too_deep, parse
from cleanrl_operator.run import Run, UnreadableRun


def nested(levels: int, kind: str = "{}", inmost: str = "1") -> str:
    opening, closing = ('{"a":', "}") if kind == "{}" else ("[", "]")
    return opening * levels + inmost + closing * levels


@pytest.mark.parametrize("kind", ["{}", "[]"])
@pytest.mark.parametrize("levels", [1000, 9999])
def test_what_lies_beside_it_is_read(levels: int, kind: str) -> None:
    deep = nested(levels, kind, inmost=r'"\"]}{[\\"')
    found = parse(f'{{"before": [1, "}}]"], "deep": {deep}, "after": {{"b": [true, "\\\\"]}}}}')
    assert (found["before"], found["after"]) == ([1, "}]"], {"b": [True, "\\"]})
    assert is_too_deep(found["deep"])
    assert not is_too_deep(found, DEEPEST)


def test_what_can_be_read_is_read_as_it_is() -> None:
    for text in ('{"a": [1, {"b": null}]}', nested(DEEPEST + 20), "[]", '"a"'):
        assert parse(text) == parse(text.encode()) == json.loads(text)
    for broken in ("", "{", "[1,]", nested(1000)[:-1]):
        with pytest.raises(ValueError, match=r"."):
            parse(broken)


@pytest.mark.parametrize(("levels", "readable"), [(MOST_LEVELS - 1, True), (MOST_LEVELS, False), (150, False)])
def test_a_run_that_is_too_deep_says_so(levels: int, readable: bool) -> None:
    metadata: dict[str, Any] = {"namespace": "ns", "name": "run", "uid": "u1", "resourceVersion": "1"}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 10, "extras": parse(nested(levels))}
    if readable:
        assert Run.parse({"metadata": metadata, "spec": spec}).name == "run"
    else:
        with pytest.raises(UnreadableRun, match=f"more than {MOST_LEVELS} levels"):
            Run.parse({"metadata": metadata, "spec": spec})
