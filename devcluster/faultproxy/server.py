"""The proxy itself: TLS in front, the API server behind, and faults in between.

Identity: a bearer token passes through untouched. A proxy that ends TLS can't pass a client certificate on, so a caller
that shows one is named to the API server in the headers of an authenticating proxy, under the proxy's own front-proxy
certificate. A caller can't set those headers itself.

Each request is an exchange, carried out by a task of its own. A new rule is held against every exchange that is under
way, not only against the next request: that is how it reaches watches that were open before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from devcluster.faultproxy.rules import Action, BadRuleError, Request, Rule, RuleBook, verb_of

_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
}  # fmt: skip
_IDENTITY_HEADERS = "x-remote-"
_BODY_LIMIT = 32 << 20
_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
_ON_OPEN_EXCHANGES = {Action.CUT_STREAM, Action.HANG, Action.OUTAGE}
_SHUTDOWN_SECONDS = 0.5


class _CutError(Exception):
    """Drop the connection to the caller without a further byte."""


@dataclass(frozen=True)
class Files:
    """Certificates and keys: what the proxy shows, and whom it believes."""

    certificate: Path
    key: Path
    upstream_ca: Path
    client_ca: Path | None = None
    front_certificate: Path | None = None
    front_key: Path | None = None


@dataclass(eq=False)
class _Exchange:
    """A request that is under way, and what the rules have done to it."""

    request: Request
    task: asyncio.Task[web.StreamResponse] | None = None
    is_cut: bool = False
    events_left: int | None = None
    """How many events may still pass before the cut; None means all of them."""
    hung_by: set[int] = field(default_factory=set)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no rule makes it hang."""

    def __post_init__(self) -> None:
        self.free.set()

    def strike(self, number: int, rule: Rule) -> None:
        """Apply a rule that acts on what is already under way."""
        if rule.action is Action.HANG:
            self.hung_by.add(number)
            self.free.clear()
        elif rule.action is Action.CUT_STREAM and rule.events:
            self.events_left = rule.events
        else:
            self.cut()

    def release(self, number: int) -> None:
        """Forget a rule that was removed."""
        self.hung_by.discard(number)
        if not self.hung_by:
            self.free.set()

    def cut(self) -> None:
        """End the exchange and drop its connection."""
        self.is_cut = True
        if self.task is not None:
            self.task.cancel()


class Proxy:
    """Requests in, faults applied, requests out."""

    def __init__(self, upstream: str, files: Files, seed: int) -> None:
        self._upstream = upstream.rstrip("/")
        self._files = files
        self._book = RuleBook(seed)
        self._exchanges: set[_Exchange] = set()
        self._by_token: aiohttp.ClientSession | None = None
        self._by_certificate: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def serving(self, host: str, port: int, control_port: int) -> AsyncIterator[tuple[int, int]]:
        """Serve callers on `host` and control on loopback; yields both ports."""
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self._files.certificate, self._files.key)
        if self._files.client_ca is not None:
            tls.load_verify_locations(self._files.client_ca)
            tls.verify_mode = ssl.CERT_OPTIONAL
        async with contextlib.AsyncExitStack() as stack:
            self._by_token = await stack.enter_async_context(self._session(None, None))
            if self._files.front_certificate is not None:
                session = self._session(self._files.front_certificate, self._files.front_key)
                self._by_certificate = await stack.enter_async_context(session)
            proxy = web.Application(client_max_size=_BODY_LIMIT)
            proxy.router.add_route("*", "/{path:.*}", self._handle)
            control = web.Application()
            control.router.add_get("/rules", self._list_rules)
            control.router.add_post("/rules", self._add_rule)
            control.router.add_delete("/rules/{number:[0-9]{1,9}}", self._remove_rule)
            served = await _serve(stack, proxy, host, port, tls)
            controlled = await _serve(stack, control, "127.0.0.1", control_port, None)
            yield served, controlled
            for exchange in set(self._exchanges):
                exchange.cut()

    def _session(self, certificate: Path | None, key: Path | None) -> aiohttp.ClientSession:
        tls = ssl.create_default_context(cafile=str(self._files.upstream_ca))
        if certificate is not None:
            tls.load_cert_chain(certificate, key)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    # Callers

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        verb = verb_of(incoming.method, incoming.path, incoming.query)
        exchange = _Exchange(Request(incoming.method, incoming.path, verb))
        exchange.task = asyncio.ensure_future(self._answer(incoming, exchange))
        self._exchanges.add(exchange)
        try:
            return await exchange.task
        except (asyncio.CancelledError, _CutError):
            if exchange.is_cut or not exchange.task.cancelled():
                if incoming.transport is not None:
                    incoming.transport.abort()
                return web.Response(status=503)  # never sent: the connection is gone
            raise
        finally:
            self._exchanges.discard(exchange)

    async def _answer(self, incoming: web.Request, exchange: _Exchange) -> web.StreamResponse:
        if "upgrade" in incoming.headers.get("Connection", "").lower():
            text = "the fault proxy passes no exec, attach or port-forward; use the kubeconfig of the API server itself"
            return _status(501, text)
        struck = self._book.judge(exchange.request)
        if struck is None:
            return await self._forward(incoming, exchange)
        number, rule = struck
        match rule.action:
            case Action.STATUS:
                headers = {} if rule.retry_after is None else {"Retry-After": str(rule.retry_after)}
                return _status(rule.status, "injected by the fault proxy", headers)
            case Action.CUT | Action.OUTAGE:
                raise _CutError
            case Action.DELAY:
                await asyncio.sleep(rule.seconds)
            case Action.LOSE_ANSWER:
                await self._forward(incoming, exchange, lose_answer=True)
                raise _CutError
            case Action.CUT_STREAM:
                exchange.events_left = rule.events
            case Action.HANG:
                exchange.strike(number, rule)
        return await self._forward(incoming, exchange)

    async def _forward(
        self, incoming: web.Request, exchange: _Exchange, *, lose_answer: bool = False
    ) -> web.StreamResponse:
        headers = _passed_on(incoming.headers, without=("host", "content-length"))
        session = self._by_token
        if "Authorization" not in headers and self._by_certificate is not None:
            headers.extend(_identity(incoming))
            session = self._by_certificate
        assert session is not None
        url = URL(self._upstream + incoming.raw_path, encoded=True)
        body = await incoming.read()
        try:
            async with session.request(
                incoming.method, url, headers=headers, data=body or None, allow_redirects=False
            ) as answer:
                if lose_answer:
                    await answer.read()
                    return web.Response()
                return await _relay(incoming, answer, exchange)
        except aiohttp.ClientConnectorError:
            return _status(502, "the API server behind the fault proxy does not answer")
        except (aiohttp.ClientError, ConnectionError) as error:
            raise _CutError from error

    # Control

    async def _list_rules(self, _request: web.Request) -> web.Response:
        rules = [
            {"number": number, "matched": live.matched, "struck": live.struck, "over": live.over, **asdict(live.rule)}
            for number, live in self._book.rules.items()
        ]
        return web.json_response({"seed": self._book.seed, "rules": rules})

    async def _add_rule(self, request: web.Request) -> web.Response:
        # A web page can't send this type to another origin without being asked first, and nobody answers that question.
        if request.content_type != "application/json":
            return web.json_response({"error": "send the rule as application/json"}, status=415)
        try:
            rule = Rule.parse(await request.json())
        except (BadRuleError, json.JSONDecodeError) as error:
            return web.json_response({"error": str(error)}, status=400)
        number = self._book.add(rule)
        if rule.action in _ON_OPEN_EXCHANGES:
            live = self._book.rules[number]
            for exchange in set(self._exchanges):
                if live.strikes(exchange.request):
                    exchange.strike(number, rule)
        if rule.lasts is not None:
            asyncio.get_running_loop().call_later(rule.lasts, self._end, number)
        return web.json_response({"number": number}, status=201)

    async def _remove_rule(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        self._end(number)
        live = self._book.rules.pop(number, None)
        if live is None:
            return web.json_response({"error": "no such rule"}, status=404)
        return web.json_response({"matched": live.matched, "struck": live.struck})

    def _end(self, number: int) -> None:
        """Let a rule strike no more, and let go what it held."""
        if number in self._book.rules:
            self._book.rules[number].over = True
        for exchange in self._exchanges:
            exchange.release(number)


async def _serve(
    stack: contextlib.AsyncExitStack, app: web.Application, host: str, port: int, tls: ssl.SSLContext | None
) -> int:
    # A caller that hangs up must also end its request upstream, else watches pile up there.
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, host, port, ssl_context=tls).start()
    return int(runner.addresses[0][1])


async def _relay(incoming: web.Request, answer: aiohttp.ClientResponse, exchange: _Exchange) -> web.StreamResponse:
    """Pass the answer on as it comes, as far as the rules let it."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=_passed_on(answer.headers))
    if exchange.request.verb != "watch":
        await exchange.free.wait()
    elif exchange.events_left == 0:
        raise _CutError
    await response.prepare(incoming)
    while data := await answer.content.readany():
        await exchange.free.wait()
        for piece in data.splitlines(keepends=True) if exchange.events_left is not None else [data]:
            await response.write(piece)
            if exchange.events_left is not None and piece.endswith(b"\n"):
                exchange.events_left -= 1
                if exchange.events_left <= 0:
                    raise _CutError
    await exchange.free.wait()
    await response.write_eof()
    return response


def _passed_on(headers: Any, without: tuple[str, ...] = ()) -> CIMultiDict[str]:
    """Headers that belong to the message and not to one connection; identity is never taken from the caller's."""
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in _HOP_BY_HOP
        and name.lower() not in without
        and not name.lower().startswith(_IDENTITY_HEADERS)
    )


def _identity(incoming: web.Request) -> CIMultiDict[str]:
    """The caller's verified certificate in the words of an authenticating proxy."""
    certificate = incoming.transport.get_extra_info("peercert") if incoming.transport is not None else None
    named: CIMultiDict[str] = CIMultiDict()
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                named.add("X-Remote-User", value)
            elif key == "organizationName":
                named.add("X-Remote-Group", value)
    return named


def _status(code: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """An error in the form in which the API server gives its own."""
    body = {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": _REASONS.get(code, ""), "code": code,
    }  # fmt: skip
    return web.json_response(body, status=code, headers=headers or {})
