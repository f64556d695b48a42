"""The narrow port to the API server: plain dictionaries in and out, and few, typed errors.

Behind it is the official client's asyncio side, for its configuration, credentials and TLS; its object models stay out of the
way, because parsing them costs more than the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
import yaml
from kubernetes.aio import client, config

from cleanrl_operator import nesting
from cleanrl_operator.api import GROUP, PLURAL, VERSION

Object = dict[str, Any]
USER_AGENT = "cleanrl-operator"
TIMEOUT_SECONDS = 30
WATCH_SECONDS, SILENCE_SECONDS = 300, 90
PAGE = 500
REQUESTS_A_CONNECTION = 200
"""Every so many requests one connection is closed after its answer.

The client's pool takes turns with all connections that it has, so none is ever idle for long: what a stall of the API server
made it open would stay for good. So it goes back to as many as are needed, and with several API servers to all of them.
"""
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
RUNS = f"apis/{GROUP}/{VERSION}"


class KubeError(Exception):
    """The API server's refusal, or the lack of an answer."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; 0 when there was no answer."""
        self.reason = reason
        """The machine-readable reason of the answer, for example AlreadyExists."""
        self.retry_after = retry_after

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later without anybody's doing."""
        return self.status in (0, 408, 409, 429) or self.status >= 500


class Kube:
    """One client with its connection pool. Create it inside the running loop."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._requests = 0
        self.writes = 0
        """Requests that change something, Events and reviews not counted."""

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Kube:
        """Take this kubeconfig, else the user's, else the pod's own service account. Raises KubeError where there is none."""
        configuration = client.Configuration()
        given = {"config_file": kubeconfig} if kubeconfig else {}
        try:
            await config.load_config(client_configuration=configuration, **given)
        except (config.ConfigException, OSError, yaml.YAMLError) as error:
            hint = "set KUBECONFIG to the file of a cluster, or run in a pod that has a service account"
            raise KubeError(0, "NoCluster", f"no cluster is known ({' '.join(str(error).split())}): {hint}") from None
        configuration.connection_pool_maxsize = 100  # all of the queue's workers, and what else asks
        configuration.retries = None
        # With it every request looks through the environment for a proxy, in another thread; kubeconfig may name one.
        configuration.client_session_kwargs = {"trust_env": False}
        return cls(client.ApiClient(configuration=configuration))

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def get(self, path: str, *, seconds: float = TIMEOUT_SECONDS) -> Object | None:
        """The object at this path, or None if there is none."""
        try:
            return await self._request("GET", path, seconds=seconds)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, path: str, *, selector: str = "", metadata_only: bool = False, page: int = PAGE
    ) -> AsyncIterator[Object]:
        """The objects of a collection, fetched page by page; with `metadata_only` nothing but their metadata."""
        async for answer in self.pages(path, selector=selector, metadata_only=metadata_only, page=page):
            for item in answer.get("items") or []:
                yield item

    async def pages(
        self, path: str, *, selector: str = "", metadata_only: bool = False, page: int = PAGE
    ) -> AsyncIterator[Object]:
        """The same, as the pages come, all of one resource version."""
        query = {"limit": str(page)}
        if selector:
            query["labelSelector"] = selector
        while True:
            accept = METADATA_ONLY if metadata_only else "application/json"
            answer = await self._request("GET", f"{path}?{urlencode(query)}", accept=accept)
            if "items" not in answer:  # what a proxy says in the server's place is no empty collection
                raise KubeError(0, "NoAnswer", f"GET {path} was answered with something that is no list")
            yield answer
            following = (answer.get("metadata") or {}).get("continue")
            if not following:
                return
            query["continue"] = following

    async def watch(self, path: str, *, selector: str, version: str) -> AsyncIterator[Object]:
        """What happens to a collection after this version, until the server ends the watch. Bookmarks included."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "1",
            "timeoutSeconds": str(WATCH_SECONDS),
            "labelSelector": selector,
            "resourceVersion": version,
        }
        # Bookmarks come every minute: a connection on which nothing comes for longer is dead.
        patience = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_connect=30, sock_read=SILENCE_SECONDS)
        response = await self._send("GET", f"{path}?{urlencode(query)}", None, seconds=patience)
        stream: aiohttp.ClientResponse = response.response
        try:
            if stream.status >= 400:
                raise _error(f"watch on {path}", stream.status, stream.headers, _parse(await stream.read()))
            async with contextlib.aclosing(_lines(stream.content)) as lines:
                async for line in lines:
                    yield _parse(line)
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise KubeError(0, "NoAnswer", f"watch on {path}: {type(error).__name__}: {error}") from error
        finally:
            stream.close()

    async def create(self, path: str, body: Object) -> Object:
        """POST an object into a collection."""
        self.writes += 1
        return await self._request("POST", path, body)

    async def delete(self, path: str, uid: str | None = None) -> None:
        """Delete an object, exactly the one with this UID if given. One that is gone, or is another one, is no error."""
        self.writes += 1
        body = {"preconditions": {"uid": uid}} if uid else {}
        try:
            await self._request("DELETE", path, body)
        except KubeError as error:
            if error.status not in (404, 409):
                raise

    async def patch_status(self, namespace: str, name: str, resource_version: str, status: Object) -> Object:
        """Replace fields of a run's status. Fails with 409 when somebody wrote in between."""
        self.writes += 1
        body = {"metadata": {"resourceVersion": resource_version}, "status": status}
        path = f"{RUNS}/namespaces/{namespace}/{PLURAL}/{name}/status"
        return await self._request("PATCH", path, body, "application/merge-patch+json")

    async def merge(self, path: str, body: Object) -> Object:
        """Change fields of an object by a merge patch."""
        self.writes += 1
        return await self._request("PATCH", path, body, "application/merge-patch+json")

    async def keep(self, method: str, path: str, body: Object, *, seconds: float = TIMEOUT_SECONDS) -> Object:
        """Write an object of the operator's own (its Lease, its pod's label); counted apart from writes for runs."""
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return await self._request(method, path, body, content_type, seconds=seconds)

    async def review(self, path: str, body: Object) -> Object:
        """POST a review (TokenReview, SubjectAccessReview); counted apart from writes."""
        return await self._request("POST", path, body)

    async def event(self, namespace: str, body: Object) -> None:
        """POST a Kubernetes Event; counted apart from writes."""
        await self._request("POST", f"api/v1/namespaces/{namespace}/events", body)

    async def _request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
        *,
        accept: str = "application/json, application/jwk-set+json;q=0.9",
        seconds: float = TIMEOUT_SECONDS,
    ) -> Object:
        response = await self._send(method, path, body, content_type, accept=accept, seconds=seconds)
        try:
            data = await response.read()
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise KubeError(0, "NoAnswer", f"{method} {path}: {type(error).__name__}: {error}") from error
        content = _parse(data)
        if response.status >= 400:
            raise _error(f"{method} {path}", response.status, response.headers, content)
        return content

    async def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        content_type: str = "application/json",
        *,
        accept: str = "application/json",
        seconds: float | aiohttp.ClientTimeout,
    ) -> Any:
        """The client's answer, not read yet."""
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": USER_AGENT}
        self._requests += 1
        if self._requests % REQUESTS_A_CONNECTION == 0:
            headers["Connection"] = "close"
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self._api.configuration.host}/{path}"
        try:
            return await self._api.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=seconds
            )
        except (OSError, TimeoutError, aiohttp.ClientError, client.ApiException) as error:
            raise KubeError(0, "NoAnswer", f"{method} {path}: {type(error).__name__}: {error}") from error


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """The lines of a stream, which is read to the end of what has come while its lines are still being worked on.

    A watcher that reads slowly is waited for by the API server, and with it wait all others that watch the same things: the
    scheduler too. What has to wait does so here.
    """
    waiting: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def read() -> None:
        begun = b""
        try:
            async for data in content.iter_any():
                *lines, begun = (begun + data).split(b"\n")
                for line in lines:
                    waiting.put_nowait(line)
        finally:
            waiting.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        while (line := await waiting.get()) is not None:
            if line:
                yield line
        await reader  # how it ended
    finally:
        reader.cancel()


def _error(asked: str, status: int, headers: Mapping[str, str], content: Object) -> KubeError:
    message = str(content.get("message") or f"{asked} was answered with {status}")
    return KubeError(status, str(content.get("reason", "")), message, _seconds(headers))


def _parse(data: bytes) -> Object:
    try:
        content = nesting.parse(data)
    except ValueError:
        return {"message": data[:200].decode(errors="replace")}
    return content if isinstance(content, dict) else {}


def _seconds(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None
