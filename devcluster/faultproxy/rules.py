"""Which request meets which fault. Pure: no clock, no socket, and chance only from a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class Action(StrEnum):
    """What happens to a request that a rule picks."""

    STATUS = "status"
    """Answer with an error at once; the API server never sees the request."""
    CUT = "cut"
    """Drop the connection; the API server never sees the request."""
    LOSE_ANSWER = "lose-answer"
    """Let the API server do it, then drop the connection in place of its answer."""
    CUT_STREAM = "cut-stream"
    """Drop a watch after some of its events. Watches that are open already are dropped when the rule is made."""
    HANG = "hang"
    """Go silent while the rule exists: no answer, and no more events on watches, open ones included. Then go on."""
    DELAY = "delay"
    """Hold the request back for a while, then pass it on."""
    OUTAGE = "outage"
    """Drop every connection, open watches included."""


class BadRuleError(ValueError):
    """A rule that makes no sense; the message says what to write instead."""


@dataclass(frozen=True)
class Request:
    """What rules know of a request."""

    method: str
    path: str
    verb: str
    """As in RBAC: get, list, watch, create, update, patch, delete, deletecollection."""


@dataclass(frozen=True)
class Rule:
    """One fault and the requests it is meant for. Empty fields match everything."""

    action: Action
    method: str = ""
    verb: str = ""
    path: str = ""
    """Regular expression, searched for in the path."""
    times: int | None = None
    """How often the fault strikes; None means as long as the rule exists."""
    probability: float = 1.0
    status: int = 0
    retry_after: int | None = None
    seconds: float = 0.0
    """How long a delay lasts."""
    events: int = 0
    """How many events a watch still delivers before it is cut."""
    lasts: float | None = None
    """Seconds until the rule stops by itself; None means that it strikes until it is removed."""

    @classmethod
    def parse(cls, given: Any) -> Rule:
        """A rule from outside; raises BadRuleError with a sentence."""
        types = {
            "action": str, "method": str, "verb": str, "path": str, "times": int, "probability": float | int,
            "status": int, "retry_after": int, "seconds": float | int, "events": int, "lasts": float | int,
        }  # fmt: skip
        assert set(types) == {known.name for known in fields(cls)}
        if not isinstance(given, Mapping):
            raise BadRuleError("a rule is an object")
        for name, value in given.items():
            if name not in types:
                raise BadRuleError(f"a rule has no field {name!r}; it has {', '.join(types)}")
            if value is None and name in {"times", "retry_after", "lasts"}:
                continue
            if isinstance(value, bool) or not isinstance(value, types[name]):
                raise BadRuleError(f"{name} can't be {value!r}")
        try:
            action = Action(given.get("action", ""))
            re.compile(given.get("path", ""))
        except ValueError:
            raise BadRuleError(f"action must be one of {', '.join(Action)}") from None
        except re.error as error:
            raise BadRuleError(f"path is no regular expression: {error}") from None
        rule = cls(**{**given, "action": action, "method": str(given.get("method", "")).upper()})
        if action is Action.STATUS and not 400 <= rule.status <= 599:
            raise BadRuleError("status must be from 400 to 599")
        if not 0.0 < rule.probability <= 1.0:
            raise BadRuleError("probability must be above 0 and at most 1")
        if (rule.times is not None and rule.times < 1) or rule.seconds < 0 or rule.events < 0 or (rule.lasts or 0) < 0:
            raise BadRuleError("times must be at least 1; seconds, events and lasts at least 0")
        return rule

    def matches(self, request: Request) -> bool:
        """Whether the request is of the kind that the rule is meant for."""
        return (
            (self.action is not Action.CUT_STREAM or request.verb == "watch")
            and (not self.method or self.method == request.method)
            and (not self.verb or self.verb == request.verb)
            and (not self.path or re.search(self.path, request.path) is not None)
        )


@dataclass
class LiveRule:
    """A rule at work: how many requests it has seen and struck."""

    rule: Rule
    chance: random.Random
    matched: int = 0
    struck: int = 0
    over: bool = False
    """Whether its time is up; its counts stay until it is removed."""

    def strikes(self, request: Request) -> bool:
        """Whether the fault strikes this request; counts it."""
        if not self.rule.matches(request) or self.spent:
            return False
        self.matched += 1
        if self.rule.probability < 1.0 and self.chance.random() >= self.rule.probability:
            return False
        self.struck += 1
        return True

    @property
    def spent(self) -> bool:
        """Whether the rule has struck as often, or lasted as long, as it may."""
        return self.over or (self.rule.times is not None and self.struck >= self.rule.times)


@dataclass
class RuleBook:
    """The rules in force, oldest first. The first one that strikes a request decides."""

    seed: int
    rules: dict[int, LiveRule] = field(default_factory=dict)
    last: int = 0

    def add(self, rule: Rule) -> int:
        """Put a rule in force and return its number, which together with the seed decides its chances."""
        self.last += 1
        self.rules[self.last] = LiveRule(rule, random.Random(f"{self.seed}/{self.last}"))  # noqa: S311 - repeatable
        return self.last

    def judge(self, request: Request) -> tuple[int, Rule] | None:
        """The rule that strikes this request, if any."""
        for number, live in self.rules.items():
            if live.strikes(request):
                return number, live.rule
        return None


def verb_of(method: str, path: str, query: Mapping[str, str]) -> str:
    """The verb that the API server's authorizer would use for the request."""
    if method in {"GET", "HEAD"}:
        if query.get("watch") in {"true", "1"}:
            return "watch"
        return "list" if _is_collection(path) else "get"
    if method == "DELETE":
        return "deletecollection" if _is_collection(path) else "delete"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())


def _is_collection(path: str) -> bool:
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        rest = parts[2:]
    elif parts[0] == "apis":
        rest = parts[3:]
    else:
        return False
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return len(rest) == 1
