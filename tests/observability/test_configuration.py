"""The shipped configuration: what promtool says of it, and that the dashboard is what its table makes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from tests.observability.debian_prometheus import CONFIG, Binaries

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("check", "config", "prometheus.yml"), id="scrape configuration"),
        pytest.param(("check", "rules", "--lint=all", "--lint-fatal", "alerts.yml"), id="rules"),
        pytest.param(("test", "rules", "alerts_test.yml"), id="unit tests of the alerts"),
    ],
)
def test_promtool_accepts(binaries: Binaries, command: tuple[str, ...]) -> None:
    done = subprocess.run([binaries.promtool, *command], cwd=CONFIG, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_every_alert_has_a_unit_test_and_says_what_to_do() -> None:
    groups = yaml.safe_load((CONFIG / "alerts.yml").read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    tests = (CONFIG / "alerts_test.yml").read_text()
    for alert in alerts:
        assert alert["annotations"]["summary"] and len(alert["annotations"]["runbook"]) > 40, alert["alert"]
        assert alert["alert"] in tests or alert["alert"].startswith("Requests"), alert["alert"]
    assert len({alert["alert"] for alert in alerts}) == 11


def test_the_dashboard_is_what_its_table_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="it is not made for Python 3.10")
    command = [sys.executable, str(CONFIG / "make_dashboard.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_found_by_its_provisioning_and_its_panels_ask_the_source_that_is_chosen() -> None:
    board = json.loads((CONFIG / "grafana" / "dashboards" / "cosydit.json").read_text())
    (source,) = yaml.safe_load((CONFIG / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((CONFIG / "grafana/provisioning/dashboards/cosydit.yml").read_text())["providers"]
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    (variable,) = board["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", source["type"])
    asked = {(panel["datasource"]["type"], panel["datasource"]["uid"]) for panel in panels}
    assert asked == {(source["type"], "${datasource}")}
    assert all(panel["targets"] and panel["description"] and panel["options"] for panel in panels)
    assert provider["type"] == "file" and provider["options"]["path"] == "/var/lib/grafana/dashboards"
