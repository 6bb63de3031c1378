"""Prometheus and promtool: those on PATH, or Debian's, unpacked from the archive and not installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.workers import made_once

CONFIG = ROOT / "deploy" / "observability"
PATIENCE_S = 30.0
DOWNLOAD_S = 60
DOWNLOAD = """
get() { apt-get -q -o Acquire::http::Timeout=5 -o Acquire::Retries=0 -o APT::Sandbox::User=root "$@"; }
{ get download prometheus || { get update && get download prometheus; }; } && dpkg -x prometheus_*.deb .
"""
"""An archive that is silent for 5 s is out of reach."""
FAILURE = "failure.txt"


@dataclass(frozen=True)
class Binaries:
    """What the package brings."""

    prometheus: str
    promtool: str


def find_binaries(factory: pytest.TempPathFactory) -> Binaries:
    """Return the binaries on PATH, else those of Debian's package; skips where neither can be had."""
    found = [shutil.which(name) for name in ("prometheus", "promtool")]
    if all(found):
        return Binaries(str(found[0]), str(found[1]))
    folder = made_once(factory, "prometheus", _unpack)
    if (folder / FAILURE).exists():
        pytest.skip(f"prometheus of Debian can't be had: {(folder / FAILURE).read_text()}")
    return Binaries(str(folder / "usr/bin/prometheus"), str(folder / "usr/bin/promtool"))


def _unpack(folder: Path) -> None:
    """Download the package with the lists that are there, else with new ones, and unpack it; or note why not."""
    folder.mkdir()
    command = ["timeout", str(DOWNLOAD_S), "bash", "-c", DOWNLOAD]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        reason = done.stderr.strip()[-300:] or f"there was no end within {DOWNLOAD_S} s"
        (folder / FAILURE).write_text(reason)


class Prometheus:
    """A running server's HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Run an instant query; returns its series."""
        result: list[dict[str, Any]] = self._get("query", {"query": expression})["result"]
        return result

    def targets(self) -> dict[str, str]:
        """Return job -> health."""
        active = self._get("targets", {})["activeTargets"]
        return {target["labels"]["job"]: target["health"] for target in active}

    def rules(self) -> list[str]:
        """Return the names of all rules and what is wrong with them."""
        groups = self._get("rules", {})["groups"]
        return [f"{rule['name']} {rule['health']}" for group in groups for rule in group["rules"]]

    def _get(self, path: str, query: Mapping[str, str]) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]


def configured_for(targets: Mapping[str, str], interval_s: int) -> dict[str, Any]:
    """Return the shipped configuration with other addresses (job -> host:port) and a shorter interval."""
    config: dict[str, Any] = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"}
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    return config


@contextmanager
def running_prometheus(binaries: Binaries, folder: Path, config: Mapping[str, Any], port: int) -> Iterator[Prometheus]:
    """Run a server on a configuration, with the shipped rules beside it."""
    folder.mkdir(parents=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
    shutil.copy(CONFIG / "alerts.yml", folder)
    command = [binaries.prometheus, f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "GOMAXPROCS": "1"}) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            _until_ready(url, process, folder / "log")
            yield Prometheus(url)
        finally:
            process.terminate()


def _until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=PATIENCE_S):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"Prometheus is not ready:\n{log.read_text()[-2000:]}")
