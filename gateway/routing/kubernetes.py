"""The endpoints of a Kubernetes Service: EndpointSlices by the API, listed once and then watched.

An endpoint that is terminating but still serving finishes its streams. Needs the verbs `list` and `watch` on
`endpointslices` of `discovery.k8s.io` in the service's namespace.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from gateway.errors import ConfigError
from gateway.routing.discovery import Found, join_address

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_EVENT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class KubernetesApi:
    """The address of the Kubernetes API, and the credentials for it."""

    url: str
    token_path: Path = ACCOUNT_DIR / "token"
    """File of the token, read for every request: the kubelet renews it."""
    ca_path: Path | None = ACCOUNT_DIR / "ca.crt"
    """Certificates that the API is checked with; None: no TLS, for tests."""

    @classmethod
    def of_this_pod(cls) -> KubernetesApi:
        """Return the API of the cluster that we run in; raises ConfigError if we run in none."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            got = "got a kubernetes: address, but KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
            raise ConfigError(f"{got}; run the gateway in a pod, or list its replicas")
        return cls(f"https://{join_address(host, int(port))}")


class KubernetesReplicas:
    """The endpoints of one Service."""

    def __init__(self, api: KubernetesApi, namespace: str, service: str, port: str, scheme: str) -> None:
        """Ask nothing yet; `port` is a number or the name of a port."""
        self.known: Found = {}
        self._api = api
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = {"labelSelector": f"kubernetes.io/service-name={service}"}
        self._port = port
        self.scheme = scheme
        self._slices: dict[str, Any] = {}

    async def watch(self) -> AsyncGenerator[Found]:
        """Yield the endpoints after each change."""
        context = ssl.create_default_context(cafile=str(self._api.ca_path)) if self._api.ca_path is not None else True
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=_MAX_EVENT_BYTES) as session:
            while True:
                version = await self._list(session)
                yield self._found()
                # NOTE: after aiohttp's five minutes for one request, all is listed again.
                with suppress(asyncio.TimeoutError):
                    async for _ in self._changes(session, version):
                        yield self._found()

    async def _list(self, session: aiohttp.ClientSession) -> str:
        async with self._get(session, {}) as response:
            response.raise_for_status()
            document = await response.json(content_type=None)
        self._slices = {item["metadata"]["name"]: item for item in document["items"] or []}
        return str(document["metadata"]["resourceVersion"])

    async def _changes(self, session: aiohttp.ClientSession, version: str) -> AsyncGenerator[None]:
        """Follow a watch to its end, which is no error; yield after each change."""
        async with self._get(session, {"watch": "1", "resourceVersion": version}) as response:
            response.raise_for_status()
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    # Mostly 410: our version is too old; all is listed again.
                    return
                name = event["object"]["metadata"].get("name", "")
                if event["type"] == "DELETED":
                    self._slices.pop(name, None)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self._slices[name] = event["object"]
                yield

    def _get(self, session: aiohttp.ClientSession, query: Mapping[str, str]) -> Any:
        headers = {"Authorization": f"Bearer {self._api.token_path.read_text().strip()}"}
        params = {**self._selector, **query}
        return session.get(self._api.url + self._path, params=params, headers=headers, allow_redirects=False)

    def _found(self) -> Found:
        found: dict[str, bool] = {}
        for item in self._slices.values():
            port = self._port_of(item)
            for endpoint in (item.get("endpoints") or []) if port is not None else ():
                may = _may_get_streams(endpoint.get("conditions") or {})
                if may is not None:
                    found |= {self.scheme + join_address(each, port): may for each in endpoint.get("addresses") or []}
        return found

    def _port_of(self, item: Any) -> Any:
        ports = item.get("ports") or []
        wanted = (port["port"] for port in ports if self._port in (port.get("name"), str(port.get("port"))))
        return next(wanted, int(self._port) if self._port.isdigit() and not ports else None)


def _may_get_streams(conditions: Mapping[str, Any]) -> bool | None:
    """Say whether an endpoint gets new streams, only finishes its own (False), or is not there (None).

    A condition that is not told counts as the API's documentation says: ready and serving, not terminating.
    """
    if conditions.get("terminating") is True:
        return False if conditions.get("serving") is not False else None
    return True if conditions.get("ready") is not False else None
