"""The settings of access: who may listen where, and what can't work."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.caller import CallerLimits
from gateway.access.http_middleware import HttpRules
from gateway.access.settings import (
    KEYS_VARIABLE,
    AccessSettings,
    TlsFiles,
    open_access,
)
from gateway.config import parse_args
from gateway.errors import ConfigError, ForeignOriginError
from tests.gateway.access.door import KEY, TLS, keys
from tests.virtual_time import ManualClock


def parsed(*arguments: str, **environment: str) -> AccessSettings:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return parse_args([*NEEDED, *arguments]).access


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    AccessSettings().check_host(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "8.8.8.8", "fe80::1", "gateway.example"])
def test_other_addresses_need_a_key_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match=r"cosydit keys new.*--keys-file.*127\.0\.0\.1.*--insecure-no-keys"):
        AccessSettings().check_host(host)
    AccessSettings(is_insecure=True).check_host(host)
    AccessSettings(fixed_keys=keys()).check_host(host)
    AccessSettings(keys_file=Path("keys.txt")).check_host(host)


NEEDED = ("--tokenizer-dir", "tokenizer", "--voices-dir", "voices")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        pytest.param(["--host", "0.0.0.0"], "without API keys", id="reachable"),
        pytest.param(["--port", "70000"], r"got --port '70000'; expected a whole number from 0 to 65535", id="port"),
    ],
)
def test_the_gateway_does_not_start_with_settings_that_contradict_each_other(arguments: list[str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_args([*NEEDED, *arguments])
    assert parse_args([*NEEDED, "--host", "0.0.0.0", "--insecure-no-keys"]).access.is_insecure


def test_no_options_are_the_defaults() -> None:
    assert parsed() == AccessSettings()


def test_options_and_environment_become_settings(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"bob {KEY}-of-bob\n")
    settings = parsed(
        *("--keys-file", str(tmp_path / "keys"), "--max-streams", "3", "--max-audio-s-per-day", "90.5"),
        *("--allowed-origin", "https://app.example", "--tls-cert", str(TLS.certificate), "--tls-key", str(TLS.key)),
        **{KEYS_VARIABLE: f"anna {KEY}; carl {KEY}-of-carl streams=1"},
    )
    assert settings.limits == CallerLimits(3, None, 90.5)
    assert [key.limits.streams for key in settings.fixed_keys] == [3, 1]
    assert settings.tls == TLS
    access = open_access(settings, ManualClock())
    names = [access.authenticate(f"{KEY}{rest}".encode(), "").name for rest in ("", "-of-bob", "-of-carl")]
    assert names == ["anna", "bob", "carl"]
    assert KEY not in repr(settings)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        pytest.param(["--insecure-no-keys", "--keys-file", "keys.txt"], "leave one", id="both"),
        pytest.param(["--tls-cert", "a.pem"], "expected both", id="half a pair"),
        pytest.param(["--allowed-origin", "app.example"], "https://app.example", id="no scheme"),
        pytest.param(["--allowed-origin", "https://app.example/"], "https://app.example", id="path"),
    ],
)
def test_settings_that_can_not_work_are_refused(arguments: list[str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parsed(*arguments)


@pytest.mark.parametrize(
    "tls",
    [
        pytest.param(TlsFiles(Path("/nowhere/a.pem"), TLS.key), id="missing"),
        pytest.param(TlsFiles(TLS.certificate, TLS.certificate), id="no key"),
        pytest.param(TlsFiles(TLS.key, TLS.key), id="no certificate"),
    ],
)
def test_a_certificate_that_can_not_be_used_stops_the_start(tls: TlsFiles) -> None:
    open_access(AccessSettings(tls=TLS), ManualClock())
    with pytest.raises(ConfigError, match="belong together"):
        open_access(AccessSettings(tls=tls), ManualClock())


OWN, APP, EVIL = "http://127.0.0.1:8080", "https://app.example", "https://evil.example"


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        pytest.param(None, "127.0.0.1:8080", id="no browser"),
        pytest.param(OWN, "127.0.0.1:8080", id="own page"),
        pytest.param("http://localhost:8080", "localhost:8080", id="own page by name"),
        pytest.param("http://[::1]:8080", "[::1]:8080", id="own page, IPv6"),
        pytest.param("http://10.0.0.7", "10.0.0.7:80", id="default port"),
        pytest.param("https://10.0.0.7", "10.0.0.7", id="default port of TLS"),
        pytest.param(APP, "127.0.0.1:8080", id="listed"),
    ],
)
def test_own_and_listed_pages_may_send_forms_and_open_sockets(origin: str | None, host: str) -> None:
    rules = HttpRules((APP,), trusts_names=False)
    for method in ("POST", "DELETE", None):
        rules.check_origin(method, origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        pytest.param(EVIL, "127.0.0.1:8080", id="foreign"),
        pytest.param("http://127.0.0.1:3000", "127.0.0.1:8080", id="other port"),
        pytest.param("http://127.0.0.1.evil.example:8080", "127.0.0.1:8080", id="look-alike"),
        pytest.param("http://evil.example:8080", "evil.example:8080", id="rebound name"),
        pytest.param("null", "127.0.0.1:8080", id="sandboxed"),
        pytest.param("", "127.0.0.1:8080", id="empty"),
        pytest.param("http://[::1", "127.0.0.1:8080", id="malformed"),
        pytest.param(OWN, None, id="no host"),
    ],
)
def test_foreign_pages_may_not(origin: str, host: str | None) -> None:
    rules = HttpRules((APP,), trusts_names=False)
    rules.check_origin("GET", origin, host)
    for method in ("POST", "DELETE", None):
        with pytest.raises(ForeignOriginError, match="--allowed-origin"):
            rules.check_origin(method, origin, host)


def test_with_keys_a_page_may_be_the_gateways_own_under_any_name() -> None:
    HttpRules().check_origin("POST", "https://tts.example", "tts.example")


def test_all_origins_can_be_allowed() -> None:
    HttpRules(("*",), trusts_names=False).check_origin("POST", EVIL, "127.0.0.1")
