"""The files for Kubernetes fit its schemas, the program, and docker/envoy/envoy.yaml."""

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from grace.cli.main import app
from grace.configs.serving import ListenConfig, MetricsConfig, ServingConfig, load_serving_config
from grace.server.life_cycle import JOIN_SECONDS
from grace.server.transport.listeners import QUIET_SECONDS
from support.documents import the_file

KUBECTL = shutil.which("kubectl")
OLDEST, NEWEST = "1.30", "1.34"  # preStop's sleep came with 1.30
# Objects of KEDA and the Prometheus operator.
NO_SCHEMA = {"PrometheusRule", "ScaledObject", "ServiceMonitor"}
WITH_PODS = {"CronJob", "Deployment"}
OVERLAYS = ("cpu", "gpu", "fleet")
USER = 65532

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@cache
def rendered(overlay: str) -> dict[tuple[str, str], Any]:
    """Return the objects of an overlay by kind and name."""
    return rendered_from(Path(__file__).parents[2] / "docker" / "kubernetes" / "overlays" / overlay)


def rendered_from(folder: Path) -> dict[tuple[str, str], Any]:
    command = [str(KUBECTL), "kustomize", str(folder)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    objects = list(yaml.safe_load_all(text))
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def template(each: Any) -> Any:
    """Return the template of the pods of a Deployment or a CronJob."""
    return each["spec"].get("jobTemplate", each)["spec"]["template"]


def deployment(overlay: str, name: str = "grace") -> Any:
    return template(rendered(overlay)["Deployment", name])["spec"]


def server(overlay: str) -> Any:
    (container,) = deployment(overlay)["containers"]
    return container


def build(overlay: str) -> Any:
    return template(rendered(overlay)["CronJob", "grace-build"])["spec"]


def content(overlay: str, volume: Any) -> dict[str, str]:
    """Return the files of a projected volume, empty where a Secret has them."""
    found = {}
    for source in volume["projected"]["sources"]:
        if secret := source.get("secret"):
            found.update({item["path"]: "" for item in secret["items"]})
        else:
            found.update(rendered(overlay)["ConfigMap", source["configMap"]["name"]]["data"])
    return found


def config_of(overlay: str, folder: Path) -> ServingConfig:
    (volume,) = (each for each in deployment(overlay)["volumes"] if each["name"] == "config")
    file = folder / "serve.yaml"
    file.write_text(content(overlay, volume)["serve.yaml"])
    return load_serving_config(file)


def pods(overlay: str) -> Iterator[Any]:
    for (kind, name), each in rendered(overlay).items():
        if kind in WITH_PODS:
            yield template(each)["spec"]
        else:
            assert kind not in {"DaemonSet", "Job", "Pod", "StatefulSet"}, name


def mounts(container: Any) -> dict[str, Any]:
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}


@every_overlay
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_fits_the_schema_of_kubernetes(overlay: str, version: str) -> None:
    for (kind, _), each in rendered(overlay).items():
        if kind not in NO_SCHEMA:
            kubernetes_validate.validate(each, version, strict=True)


@every_overlay
def test_probes_ports_and_services_are_those_of_the_server(overlay: str, tmp_path: Path) -> None:
    config, container = config_of(overlay, tmp_path), server(overlay)
    assert (config.listen.host, config.metrics.host) == ("0.0.0.0", "0.0.0.0")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": ListenConfig().port, "metrics": MetricsConfig().port}
    service = rendered(overlay)["Service", "grace"]["spec"]
    assert service["clusterIP"] == "None"
    assert {port["name"]: port["port"] for port in service["ports"]} == ports
    assert {port["targetPort"] for port in service["ports"]} == set(ports)
    (clients, scraper) = rendered(overlay)["NetworkPolicy", "grace"]["spec"]["ingress"]
    assert [clients["ports"], scraper["ports"]] == [[{"port": port}] for port in ports.values()]
    monitor = rendered(overlay)["ServiceMonitor", "grace"]["spec"]
    assert [(each["port"], each["path"]) for each in monitor["endpoints"]] == [
        ("metrics", "/metrics")
    ]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"] == {"path": "/healthz", "port": "metrics"}


@every_overlay
def test_a_pod_has_the_time_that_its_drain_takes(overlay: str, tmp_path: Path) -> None:
    listen = config_of(overlay, tmp_path).listen
    pre_stop = server(overlay)["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = listen.linger_seconds + QUIET_SECONDS + listen.drain_seconds + 2 * JOIN_SECONDS
    assert deployment(overlay)["terminationGracePeriodSeconds"] >= pre_stop + drain


@every_overlay
def test_flags_and_paths_are_those_of_the_program(overlay: str, tmp_path: Path) -> None:
    config, container = config_of(overlay, tmp_path), server(overlay)
    command, *words = container["args"]
    known = typer.main.get_group(app).commands[command].params
    options = {name for each in known for name in each.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert words[words.index("--config") + 1] == "/etc/grace/serve.yaml"
    (volume,) = (each for each in deployment(overlay)["volumes"] if each["name"] == "config")
    files = {f"/etc/grace/{name}" for name in content(overlay, volume)}
    if config.listen.tls is not None:
        tls = config.listen.tls
        assert {str(tls.certificate), str(tls.key), str(tls.client_ca)} <= files
    found = mounts(container)
    assert found[str(config.snapshots)]["readOnly"] is True
    assert config.state_dir is not None
    assert str(config.state_dir.parent) in found
    assert "readOnly" not in found[str(config.state_dir.parent)]


@every_overlay
def test_the_build_publishes_to_the_folder_that_servers_follow(
    overlay: str, tmp_path: Path, repository: Path
) -> None:
    (container,) = build(overlay)["containers"]
    *_, root = container["args"]
    assert root == str(config_of(overlay, tmp_path).snapshots)
    assert "readOnly" not in mounts(container)[root]
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in (build(overlay), deployment(overlay))
        for volume in pod["volumes"]
        if volume["name"] == mounts(container)[root]["name"]
    }
    assert claims == {"grace-snapshots"}
    assert ("PersistentVolumeClaim", "grace-snapshots") in rendered(overlay)
    assert container["command"][-1] == "hourly.sh"
    script = the_file(repository / "docs" / "building.md", "hourly.sh")
    for variable in container["env"]:
        assert f"${{{variable['name']}:-" in script
    (first,) = deployment(overlay)["initContainers"]
    assert f"{root}/CURRENT" in first["command"][-1]


def test_the_documented_overlay_changes_image_settings_and_what_is_built(
    repository: Path, tmp_path: Path
) -> None:
    shutil.copytree(repository / "docker", tmp_path / "docker")
    own, page = tmp_path / "own", repository / "docs" / "fleet.md"
    own.mkdir()
    (own / "kustomization.yaml").write_text(the_file(page, "kustomization.yaml"))
    (own / "serve.yaml").write_text("state_dir: /elsewhere\n")
    objects = rendered_from(own)
    served, follower = template(objects["Deployment", "grace"])["spec"]["containers"]
    (builder,) = template(objects["CronJob", "grace-build"])["spec"]["containers"]
    images = {each["image"] for each in (served, follower, builder)}
    assert images == {"registry.example.com/grace:cuda-1"}
    assert follower["args"][:2] == ["admin", "follow"]
    assert builder["args"] == ["/srv/grace", build("fleet")["containers"][0]["args"][-1]]
    assert builder["envFrom"] == [{"secretRef": {"name": "ads-reader"}}]
    for container in (builder, served, follower):
        assert "/srv/grace" in mounts(container)
    for (kind, _), each in objects.items():
        if kind not in NO_SCHEMA:
            kubernetes_validate.validate(each, NEWEST, strict=True)
    settings = [
        each["data"]["serve.yaml"]
        for (kind, _), each in objects.items()
        if kind == "ConfigMap" and "serve.yaml" in each["data"]
    ]
    assert settings == ["state_dir: /elsewhere\n"]


@every_overlay
def test_no_container_has_rights_or_a_writable_root(overlay: str) -> None:
    for pod in pods(overlay):
        security = pod["securityContext"]
        assert (security["runAsUser"], security["fsGroup"]) == (USER, USER)
        assert security["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            # A container cannot make the place of a mount inside a read-only one.
            found = mounts(container)
            for path, mount in found.items():
                inside = [other for other in found if other.startswith(f"{path}/")]
                assert not (mount.get("readOnly") and inside)


@every_overlay
def test_everything_that_selects_pods_selects_those_that_it_means(overlay: str) -> None:
    objects = rendered(overlay)
    labels = {
        name: template(each)["metadata"]["labels"]
        for (kind, name), each in objects.items()
        if kind in WITH_PODS
    }
    for (kind, name), each in objects.items():
        spec = each["spec"] if kind not in ("ConfigMap", "Namespace") else {}
        if kind == "Service":
            assert spec["selector"] == labels[name]
            assert each["metadata"]["labels"] == labels[name]
        elif kind in ("Deployment", "PodDisruptionBudget"):
            assert spec["selector"] == {"matchLabels": labels[name]}
        elif kind == "NetworkPolicy":
            assert spec["podSelector"] == {"matchLabels": labels[name]}
        elif kind == "ServiceMonitor":
            assert spec["selector"] == {
                "matchLabels": objects["Service", name]["metadata"]["labels"]
            }
    assert objects["CronJob", "grace-build"]["spec"]["concurrencyPolicy"] == "Forbid"


def test_the_fleets_servers_are_called_by_envoy_alone() -> None:
    objects = rendered("fleet")
    envoy, server = (
        {"podSelector": {"matchLabels": {"app": app}}} for app in ("grace-envoy", "grace")
    )
    clients, _ = objects["NetworkPolicy", "grace"]["spec"]["ingress"]
    assert clients["from"] == [envoy]
    assert objects["NetworkPolicy", "grace-envoy"]["spec"]["egress"][0]["to"] == [server]
    assert "appProtocol" not in objects["Service", "grace"]["spec"]["ports"][0]  # it has TLS
    (callers,) = rendered("gpu")["NetworkPolicy", "grace"]["spec"]["ingress"][0]["from"]
    assert callers["podSelector"] == {"matchLabels": {"grace-client": "true"}}


def test_envoy_has_the_time_that_its_drain_takes() -> None:
    pod = deployment("fleet", "grace-envoy")
    (container,) = pod["containers"]
    args = container["args"]
    drain = int(args[args.index("--drain-time-s") + 1])
    stop = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    asleep = int(stop.rpartition("sleep ")[2])
    assert drain < asleep < pod["terminationGracePeriodSeconds"]


def test_envoy_finds_its_file_its_certificates_and_the_servers(repository: Path) -> None:
    pod = deployment("fleet", "grace-envoy")
    (container,), (volume,) = pod["containers"], pod["volumes"]
    files = content("fleet", volume)
    text = (repository / "docker" / "envoy" / "envoy.yaml").read_text()
    assert files["envoy.yaml"] == text
    (folder,) = mounts(container)
    args = container["args"]
    assert args[args.index("-c") + 1] == f"{folder}/envoy.yaml"
    values = yaml.safe_load(text)
    clients, stats = values["static_resources"]["listeners"]
    named = {word.rstrip("}") for word in text.split() if word.startswith(f"{folder}/")}
    assert named == {f"{folder}/{name}" for name in files if name != "envoy.yaml"}
    listens = [each["address"]["socket_address"]["port_value"] for each in (clients, stats)]
    assert [port["containerPort"] for port in container["ports"]] == listens
    service = rendered("fleet")["Service", "grace-envoy"]["spec"]
    assert [port["port"] for port in service["ports"]] == listens
    admin = values["admin"]["address"]["socket_address"]
    stop = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert f"/dev/tcp/{admin['address']}/{admin['port_value']}" in stop
    cluster = values["static_resources"]["clusters"][0]
    (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    grace = rendered("fleet")["Service", "grace"]["metadata"]
    assert endpoint["endpoint"]["address"]["socket_address"] == {
        "address": f"{grace['name']}.{grace['namespace']}.svc.cluster.local",
        "port_value": ListenConfig().port,
    }


def test_envoy_agrees_with_the_limits_of_the_server(repository: Path, tmp_path: Path) -> None:
    """Its checks notice a drain within the linger, and its connections stay below the limits."""
    config = config_of("fleet", tmp_path)
    text = (repository / "docker" / "envoy" / "envoy.yaml").read_text()
    cluster = yaml.safe_load(text)["static_resources"]["clusters"][0]
    (check,) = cluster["health_checks"]
    assert check["grpc_health_check"]["service_name"] == "grace.v1.AdsRetrieval"
    assert 2 * float(check["interval"].rstrip("s")) < config.listen.linger_seconds
    (options,) = cluster["typed_extension_protocol_options"].values()
    idle = options["common_http_protocol_options"]["idle_timeout"]
    assert float(idle.rstrip("s")) < config.listen.idle_seconds
    streams = options["explicit_http_config"]["http2_protocol_options"]["max_concurrent_streams"]
    assert streams <= config.limits.connection_calls
    (breaker,) = cluster["circuit_breakers"]["thresholds"]
    assert breaker["max_requests"] <= config.limits.open_calls
    listener = yaml.safe_load(text)["static_resources"]["listeners"][0]
    assert listener["per_connection_buffer_limit_bytes"] >= 4 * config.limits.message_bytes
