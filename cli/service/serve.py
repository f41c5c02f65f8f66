import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from grace.configs.options import Option


def _port_of(section: str) -> Any:
    return Option(f"Port instead of {section}.port; 0: a free one.", least=0, most=65535)


def serve(
    snapshots: Annotated[Path | None, "Folder of snapshot versions, instead of the YAML's."] = None,
    checkpoint: Annotated[Path | None, "Folder of the checkpoint, instead of the YAML's."] = None,
    config: Annotated[
        Path | None, "YAML of settings that replace defaults; docs/settings.md has all."
    ] = None,
    state_dir: Annotated[
        Path | None, "Local folder for stops and pins, instead of the YAML's state_dir."
    ] = None,
    port: Annotated[int | None, _port_of("listen")] = None,
    admin_port: Annotated[int | None, _port_of("admin")] = None,
    metrics_port: Annotated[int | None, _port_of("metrics")] = None,
    device: Annotated[str | None, "Device instead of the YAML's: cpu or cuda:0."] = None,
    eligibility: Annotated[
        str | None,
        "What decoding tests, instead of the YAML's: exact, cd, union, static or dynamic.",
    ] = None,
    timeline: Annotated[
        Path | None, "Write a trace of the last batches here when the server stops."
    ] = None,
) -> None:
    """Serve Retrieve, health, reflection, Admin and metrics until SIGTERM or Ctrl-C.

    Give `--snapshots` and `--checkpoint` unless the YAML of `--config` names them.

    Example: `grace serve --snapshots demo/snapshots --checkpoint model/demo --state-dir demo/state`
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the start reads what it asks for anyway

    from grace.configs.serving import load_serving_config
    from grace.server.address_space import require_address_space

    settings = load_serving_config(config, snapshots, checkpoint, state_dir)
    ports = {"listen": port, "admin": admin_port, "metrics": metrics_port}
    replaced: dict[str, Any] = {"device": device, "eligibility": eligibility}
    given = []
    for name, value in (ports | replaced).items():
        if value is not None:
            new = replace(getattr(settings, name), port=value) if name in ports else value
            settings = replace(settings, **{name: new})
            option = name if name in replaced else f"{name}-port".removeprefix("listen-")
            given.append(f"--{option} {value}")
    source = "the defaults" if config is None else str(config)
    source = f"{source} with {' '.join(given)}" if given else source
    require_address_space(settings)
    # Set before gRPC is loaded, here and in relays: any caller can cause its log lines, which are
    # not in our format.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from grace.server.life_cycle import serve as run_server

    raise typer.Exit(run_server(settings, timeline=timeline, source=source))
