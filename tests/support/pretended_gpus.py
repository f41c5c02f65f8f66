"""GPUs that torch seems to find on any machine, for tests of what is checked before one is used."""

import pytest
import torch


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
