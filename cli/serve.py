"""`grace serve`: run the online service."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    config: Annotated[
        Path, typer.Option(help="The server's YAML; docs/operations.md lists every setting.")
    ],
    snapshots: Annotated[
        Path | None, typer.Option(help="Folder of snapshot versions, instead of the YAML's.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of the checkpoint, instead of the YAML's.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port instead of listen.port; 0: a free one."),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port instead of admin.port; 0: a free one."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port instead of metrics.port; 0: a free one."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device instead of the YAML's: cpu or cuda:0.")
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Write a trace of the last batches here when the server stops."),
    ] = None,
) -> None:
    """Serve Retrieve, health, reflection, Admin and metrics until SIGTERM or Ctrl-C.

    Give `--snapshots` and `--checkpoint` unless the YAML names them.

    Example: `grace serve --config serve.yaml --snapshots demo/snapshots --checkpoint model/demo`
    """
    from dataclasses import replace

    from grace.configs.serving import load_serving_config

    settings = load_serving_config(config, snapshots, checkpoint)
    if port is not None:
        settings = replace(settings, listen=replace(settings.listen, port=port))
    if admin_port is not None:
        settings = replace(settings, admin=replace(settings.admin, port=admin_port))
    if metrics_port is not None:
        settings = replace(settings, metrics=replace(settings.metrics, port=metrics_port))
    if device is not None:
        settings = replace(settings, device=device)
    from grace.server.life_cycle import serve as run_server

    options = {
        "--port": port,
        "--admin-port": admin_port,
        "--metrics-port": metrics_port,
        "--device": device,
    }
    given = [f"{option} {value}" for option, value in options.items() if value is not None]
    source = f"{config} with {' '.join(given)}" if given else str(config)
    raise typer.Exit(run_server(settings, timeline=timeline, source=source))
