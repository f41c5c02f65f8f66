"""The dashboard and the alerts against a real Prometheus."""
