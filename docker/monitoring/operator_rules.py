"""Write the alert rules as an object of the Prometheus operator, which `make fix` does.

    python docker/monitoring/operator_rules.py docker/monitoring/alerts.yaml \\
        docker/kubernetes/base/alerts.yaml
"""

import sys
from pathlib import Path

HEAD = """\
# docker/monitoring/alerts.yaml for the Prometheus operator: make fix writes this file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: grace
spec:
"""


def operator_rules(alerts: str) -> str:
    groups = alerts[alerts.index("groups:\n") :]
    return HEAD + "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(True))


if __name__ == "__main__":
    alerts, written = map(Path, sys.argv[1:])
    written.write_text(operator_rules(alerts.read_text(encoding="utf-8")), encoding="utf-8")
