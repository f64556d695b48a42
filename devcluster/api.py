"""A small client of the API server: what starting, watching and provisioning need, with the standard library only."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""


class ApiError(Exception):
    """The API server refused a request, or can't be reached (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """Requests to one API server with one client certificate."""

    def __init__(
        self, host: str, port: int, authority: Path, certificate: Path, key: Path, patience: float = 0
    ) -> None:
        """`patience`: for so many seconds a server that is not reachable or not itself yet is asked again."""
        self.host = host
        self.port = port
        self._patience = patience
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(certificate, key)

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content_type: str = "application/json",
        timeout: float = 10,
    ) -> Object:
        """One request; the answer as an object. Refusals and a silent server raise ApiError."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._request_once(method, path, body, content_type, timeout)
            except ApiError as error:
                passing = error.status in {0, 429} or error.status >= 500
                if not passing or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _request_once(self, method: str, path: str, body: Object | None, content_type: str, timeout: float) -> Object:
        connection = http.client.HTTPSConnection(self.host, self.port, context=self._tls, timeout=timeout)
        try:
            connection.request(
                method, path, json.dumps(body) if body is not None else None, {"Content-Type": content_type}
            )
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"the API server at {self.host}:{self.port} can't be reached: {error}") from error
        finally:
            connection.close()
        if response.status >= 300:
            raise ApiError(response.status, _message(content))
        return _object(content)

    def get(self, path: str) -> Object:
        """Read an object or a list."""
        return self.request("GET", path)

    def create(self, path: str, body: Object) -> bool:
        """Create an object; False when one of that name is there already."""
        try:
            self.request("POST", path, body)
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True

    def merge(self, path: str, body: Object) -> Object:
        """Merge a patch into an object."""
        return self.request("PATCH", path, body, content_type="application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete an object; one that is gone already is fine."""
        try:
            self.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    def answers(self, path: str) -> bool:
        """Whether a health path says yes."""
        try:
            self.request("GET", path, timeout=3)
        except ApiError:
            return False
        return True

    def watch(self, path: str, resource_version: str, seconds: int) -> Iterator[Object]:
        """The changes of a collection since a version, for about so many seconds."""
        connection = http.client.HTTPSConnection(self.host, self.port, context=self._tls, timeout=seconds + 10)
        try:
            query = f"?watch=1&resourceVersion={resource_version}&timeoutSeconds={seconds}"
            connection.request("GET", path + query)
            response = connection.getresponse()
            if response.status >= 300:
                raise ApiError(response.status, _message(response.read()))
            while line := response.readline():
                event = _object(line)
                if event.get("type") == "ERROR":
                    raise ApiError(int(event["object"].get("code", 0)), str(event["object"].get("message", "")))
                yield event
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"the watch on {path} broke: {error}") from error
        finally:
            connection.close()


def _object(content: bytes) -> Object:
    try:
        value = json.loads(content)
    except ValueError:
        return {"text": content.decode(errors="replace")}
    return value if isinstance(value, dict) else {"value": value}


def _message(content: bytes) -> str:
    return str(_object(content).get("message") or content.decode(errors="replace").strip())
