"""The rules of the fault proxy, without a socket."""

from __future__ import annotations

import pytest

from devcluster.faultproxy.rules import BadRuleError, Request, Rule, RuleBook, verb_of

RUN = "/apis/mosaic.dev/v1alpha1/namespaces/team/cleanrlruns/one"


def request(method: str = "PATCH", path: str = RUN, **query: str) -> Request:
    return Request(method, path, verb_of(method, path, query))


@pytest.mark.parametrize(
    ("method", "path", "query", "verb"),
    [
        ("GET", "/api/v1/pods", {}, "list"),
        ("GET", "/api/v1/pods", {"watch": "true"}, "watch"),
        ("GET", "/api/v1/pods", {"watch": "1"}, "watch"),
        ("GET", "/api/v1/pods", {"watch": "false"}, "list"),
        ("GET", "/api/v1/namespaces", {}, "list"),
        ("GET", "/api/v1/namespaces/team", {}, "get"),
        ("GET", "/api/v1/namespaces/team/pods", {}, "list"),
        ("GET", "/api/v1/namespaces/team/pods/a", {}, "get"),
        ("GET", "/api/v1/namespaces/team/pods/a/log", {}, "get"),
        ("GET", RUN, {}, "get"),
        ("GET", "/healthz", {}, "get"),
        ("GET", "/", {}, "get"),
        ("POST", "/api/v1/namespaces/team/pods", {}, "create"),
        ("PUT", RUN, {}, "update"),
        ("PATCH", RUN + "/status", {}, "patch"),
        ("DELETE", RUN, {}, "delete"),
        ("DELETE", "/api/v1/namespaces/team/pods", {}, "deletecollection"),
    ],
)
def test_verbs_are_those_of_rbac(method, path, query, verb):
    assert verb_of(method, path, query) == verb


def test_a_rule_strikes_only_requests_of_its_kind():
    book = RuleBook(seed=1)
    book.add(Rule.parse({"action": "status", "status": 429, "method": "patch", "path": "/cleanrlruns/"}))
    assert book.judge(request("GET")) is None
    assert book.judge(request("PATCH", "/api/v1/namespaces/team/pods/a")) is None
    number, rule = book.judge(request("PATCH"))
    assert (number, rule.status) == (1, 429)
    assert (book.rules[1].matched, book.rules[1].struck) == (1, 1)


def test_a_rule_strikes_as_often_as_it_may_and_the_next_takes_over():
    book = RuleBook(seed=1)
    book.add(Rule.parse({"action": "status", "status": 500, "times": 2}))
    book.add(Rule.parse({"action": "cut", "verb": "patch"}))
    assert [book.judge(request())[0] for _ in range(4)] == [1, 1, 2, 2]
    assert book.judge(request("GET")) is None


def test_a_cut_of_streams_spares_what_is_no_watch():
    book = RuleBook(seed=1)
    book.add(Rule.parse({"action": "cut-stream"}))
    assert book.judge(request("GET", "/api/v1/pods")) is None
    assert book.judge(request("GET", "/api/v1/pods", watch="true")) is not None


def test_chance_is_repeated_by_the_seed_and_differs_between_seeds():
    def struck(seed: int) -> list[bool]:
        book = RuleBook(seed)
        book.add(Rule.parse({"action": "cut", "probability": 0.5}))
        return [book.judge(request()) is not None for _ in range(64)]

    assert struck(7) == struck(7)
    assert struck(7) != struck(8)
    assert 10 < sum(struck(7)) < 54


def test_a_rule_spared_by_chance_still_counts_what_it_saw():
    book = RuleBook(seed=7)
    book.add(Rule.parse({"action": "cut", "probability": 0.1, "times": 3}))
    for _ in range(64):
        book.judge(request())
    live = book.rules[1]
    assert live.struck == 3
    assert live.matched > 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "a rule is an object"),
        ({}, "action must be one of status, cut"),
        ({"action": "explode"}, "action must be one of"),
        ({"action": "status"}, "status must be from 400 to 599"),
        ({"action": "status", "status": 200}, "status must be from 400 to 599"),
        ({"action": "status", "status": "429"}, "status can't be '429'"),
        ({"action": "cut", "times": 0}, "times must be at least 1"),
        ({"action": "cut", "times": True}, "times can't be True"),
        ({"action": "cut", "probability": 0}, "probability must be above 0"),
        ({"action": "cut", "probability": float("nan")}, "probability must be above 0"),
        ({"action": "cut", "path": "("}, "path is no regular expression"),
        ({"action": "cut", "verbs": "get"}, "no field 'verbs'; it has action, method"),
        ({"action": "delay", "seconds": -1}, "at least 0"),
    ],
)
def test_a_rule_without_sense_is_refused_with_a_sentence(given, said):
    with pytest.raises(BadRuleError) as refusal:
        Rule.parse(given)
    assert said in str(refusal.value)
