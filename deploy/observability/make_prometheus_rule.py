"""Writes prometheus-rule.yaml of k8s/components/monitoring from alerts.yml: `python make_prometheus_rule.py`.

`--check` compares only. The object is what Prometheus' operator loads rules from.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

SOURCE = Path(__file__).parent / "alerts.yml"
TARGET = Path(__file__).parents[1] / "k8s" / "components" / "monitoring" / "prometheus-rule.yaml"
HEAD = """\
# Written by deploy/observability/make_prometheus_rule.py from alerts.yml beside it; change that.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: cosydit
spec:
"""
FIRST_KEY = "groups:\n"


def build() -> str:
    """Return the object's YAML: the rules as they stand in alerts.yml, indented."""
    comment, key, groups = SOURCE.read_text().partition(FIRST_KEY)
    assert key and all(line.startswith("#") for line in comment.splitlines()), f"{SOURCE} has keys beside groups"
    return HEAD + textwrap.indent(key + groups, "  ")


def main(arguments: list[str]) -> int:
    """Write the file, or say whether it is what would be written."""
    if arguments == ["--check"]:
        is_current = TARGET.read_text() == build()
        sys.stdout.write(f"{TARGET}: {'current' if is_current else 'outdated; run make_prometheus_rule.py'}\n")
        return 0 if is_current else 1
    TARGET.write_text(build())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
