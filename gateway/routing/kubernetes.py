"""The endpoints of a Kubernetes Service: EndpointSlices by the API, listed once and then watched.

An endpoint that is terminating but still serving finishes its streams. Needs the verbs `list` and `watch` on
`endpointslices` of `discovery.k8s.io` in the service's namespace.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from gateway.errors import ConfigError
from gateway.routing.discovery import Found, join_address

logger = logging.getLogger(__name__)

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WATCH_S = 300
"""Seconds after which a watch ends by itself; then all is listed again."""
_CONNECT_S = 5.0
_SILENCE_S = WATCH_S + 30.0
_MAX_EVENT_BYTES = 4 * 1024 * 1024
_GONE = 410
_RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class KubernetesApi:
    """The address of the Kubernetes API, and the credentials for it."""

    url: str
    token_path: Path = ACCOUNT_DIR / "token"
    """File of the token, read for every request: the kubelet renews it."""
    ca_path: Path | None = ACCOUNT_DIR / "ca.crt"
    """Certificates that the API is checked with; None: no TLS, for tests."""

    @classmethod
    def of_this_pod(cls, environment: Mapping[str, str] | None = None) -> KubernetesApi:
        """Return the API of the cluster that we run in.

        Raises:
            ConfigError: we run in none.
        """
        environment = os.environ if environment is None else environment
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
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
        self._scheme = scheme
        self._slices: dict[str, Any] = {}

    async def watch(self) -> AsyncGenerator[Found]:
        """Yield the endpoints after each change; log errors and try again."""
        failures = 0
        async with self._session() as session:
            while True:
                try:
                    version = await self._list(session)
                    failures = 0
                    yield self._found()
                    async for _ in self._changes(session, version):
                        yield self._found()
                except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, LookupError) as error:
                    pause_s = _RETRY_S[min(failures, len(_RETRY_S) - 1)]
                    failures += 1
                    logger.warning("Kubernetes API at %s: %r; again in %.1f s", self._api.url, error, pause_s)
                    await asyncio.sleep(pause_s)

    def _session(self) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cafile=str(self._api.ca_path)) if self._api.ca_path is not None else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S),
            read_bufsize=_MAX_EVENT_BYTES,
            trust_env=False,
        )

    async def _list(self, session: aiohttp.ClientSession) -> str:
        async with self._get(session, {}) as response:
            response.raise_for_status()
            document = await response.json(content_type=None)
        self._slices = {item["metadata"]["name"]: item for item in document["items"] or []}
        return str(document["metadata"]["resourceVersion"])

    async def _changes(self, session: aiohttp.ClientSession, version: str) -> AsyncGenerator[None]:
        """Follow a watch to its end, which is no error; yield after each change."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_S)}
        async with self._get(session, query) as response:
            if response.status == _GONE:
                return
            response.raise_for_status()
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    # Mostly 410: our version is too old; all is listed again.
                    return
                self._apply(event["type"], event["object"])
                yield

    def _get(self, session: aiohttp.ClientSession, query: Mapping[str, str]) -> Any:
        headers = {"Authorization": f"Bearer {self._api.token_path.read_text().strip()}"}
        params = {**self._selector, **query}
        return session.get(self._api.url + self._path, params=params, headers=headers, allow_redirects=False)

    def _apply(self, kind: str, item: Any) -> None:
        name = item["metadata"].get("name", "")
        if kind == "DELETED":
            self._slices.pop(name, None)
        elif kind in ("ADDED", "MODIFIED"):
            self._slices[name] = item

    def _found(self) -> Found:
        found: dict[str, bool] = {}
        for item in self._slices.values():
            port = self._port_of(item)
            for endpoint in (item.get("endpoints") or []) if port is not None else ():
                may = _may_get_streams(endpoint.get("conditions") or {})
                if may is not None:
                    found |= {self._scheme + join_address(each, port): may for each in endpoint.get("addresses") or []}
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
