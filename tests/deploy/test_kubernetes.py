"""The manifests: what kubectl renders of each overlay fits the Kubernetes schemas, and its parts fit each other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from gateway.config import HTTP_GRACE_S
from gateway.doors.grpc import DEFAULT_GRACE_S
from gateway.telemetry.exposition import LIVE_PATH
from tests.deploy.commands import check_command
from tests.deploy.tools import DEPLOY, Program, wheel_program
from token2wav_service.serving.process import health

pytestmark = pytest.mark.slow

KUSTOMIZE = DEPLOY / "k8s"
OBSERVABILITY = DEPLOY / "observability"
AUTOSCALED = "autoscaled"
"""The base with both components."""
OVERLAYS = ["80gb", "cpu", "single-gpu", "trtllm", "vllm", AUTOSCALED]
"""Of the sizes one: `test_measured` reads what the others change."""
SERVICES = ("gateway", "llm", "token2wav")
KUBERNETES_VERSIONS = ("1.25", "1.37")
SCHEMAS = Path(__file__).parent / "schemas"

Manifest = dict[str, Any]
Manifests = dict[tuple[str, str], Manifest]


@cache
def rendered(kubectl: Program, overlay: str) -> Manifests:
    """Return the objects of an overlay by kind and name."""
    with tempfile.TemporaryDirectory() as directory:
        folder = _with_components(Path(directory)) if overlay == AUTOSCALED else KUSTOMIZE / "overlays" / overlay
        documents = yaml.safe_load_all(kubectl.output("kustomize", str(folder)))
        objects = [document for document in documents if document]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(by_name) == len(objects)
    return by_name


def _with_components(folder: Path) -> Path:
    """Write what the guide tells users to write for autoscaling and monitoring."""
    deploy = os.path.relpath(KUSTOMIZE, folder.resolve())
    parts = [f"{deploy}/components/{name}" for name in ("autoscaled", "monitoring")]
    kustomization = {"resources": [f"{deploy}/base"], "components": parts}
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return folder


@pytest.fixture(scope="session")
def kubectl() -> Program:
    """A kubectl of now."""
    return wheel_program("kubectl")


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest, kubectl: Program) -> Manifests:
    """The objects of each overlay in turn."""
    return rendered(kubectl, request.param)


def containers(manifests: Manifests) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Yield name, pod and container of each of our services."""
    for name in SERVICES:
        pod = manifests["Deployment", name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield name, pod, container


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_every_object_fits_its_schema(version: str, manifests: Manifests) -> None:
    for manifest in manifests.values():
        own = SCHEMAS / f"{manifest['kind']}.json"
        if own.exists():
            jsonschema.validate(manifest, json.loads(own.read_text()))
        else:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_each_command_is_one_that_its_program_takes(manifests: Manifests) -> None:
    for _, _, container in containers(manifests):
        check_command(container["command"])
        if "preStop" in (container.get("lifecycle") or {}):
            check_command(container["lifecycle"]["preStop"]["exec"]["command"])


def test_the_services_agree_on_the_llms_backend(manifests: Manifests) -> None:
    commands = {name: container["command"] for name, _, container in containers(manifests)}
    chosen = next(word for word in commands["llm"] if word.startswith("--backend=")).removeprefix("--backend=")
    assert f"--llm-backend={chosen}" in commands["gateway"]
    assert f"--set=llm_backend={chosen}" in commands["token2wav"]


def test_every_pod_keeps_to_the_restricted_standard(manifests: Manifests) -> None:
    for _, pod, container in containers(manifests):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostIPC", "hostPID", "hostNetwork"} & pod.keys()
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert pod["automountServiceAccountToken"] is False


def test_weights_are_mounted_read_only_and_every_mount_has_its_volume(manifests: Manifests) -> None:
    for _, pod, container in containers(manifests):
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert mounts["/models"]["readOnly"] is True
        assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in pod["volumes"]}


def test_a_pod_has_time_to_drain_before_it_is_killed(manifests: Manifests) -> None:
    for name, pod, container in containers(manifests):
        command = ((container.get("lifecycle") or {}).get("preStop") or {"exec": {"command": []}})["exec"]["command"]
        hook = [word.removeprefix("--timeout-s=") for word in command if word.startswith("--timeout-s=")]
        hook_s = int(command[1]) if command[:1] == ["sleep"] else int(hook[0]) if hook else 0
        waits = re.findall(r"--(?:drain-delay|drain-timeout|exit-timeout)-s=(\d+)", " ".join(container["command"]))
        closing_s = HTTP_GRACE_S + DEFAULT_GRACE_S if name == "gateway" else 0
        assert pod["terminationGracePeriodSeconds"] > hook_s + sum(map(int, waits)) + closing_s


def test_every_service_has_probes_on_ports_that_it_names(manifests: Manifests) -> None:
    for name, _, container in containers(manifests):
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert "exec" in container[probe] or container[probe]["httpGet"]["port"] in ports
        assert {port["targetPort"] for port in manifests["Service", name]["spec"]["ports"]} <= ports


def test_token2wavs_probes_ask_the_model_and_leave_it_time_to_answer(manifests: Manifests) -> None:
    (token2wav,) = [container for name, _, container in containers(manifests) if name == "token2wav"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        command = token2wav[probe]["exec"]["command"]
        check_command(command)
        assert command[2] == health.__name__
        assert health.parser().parse_args(command[3:]).timeout_s < token2wav[probe]["timeoutSeconds"]


def test_a_gateway_with_full_doors_is_not_killed_for_it(manifests: Manifests) -> None:
    (gateway,) = [container for name, _, container in containers(manifests) if name == "gateway"]
    assert gateway["livenessProbe"]["httpGet"] == {"path": LIVE_PATH, "port": "metrics"}
    (port,) = [each["containerPort"] for each in gateway["ports"] if each["name"] == "metrics"]
    assert f"--metrics-port={port}" in gateway["command"]
    assert gateway["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def allowed_out(manifests: Manifests, name: str) -> list[Manifest]:
    """Return what a service's pods may reach, by all policies that select them."""
    labels = manifests["Deployment", name]["spec"]["template"]["metadata"]["labels"]
    policies = [each["spec"] for (kind, _), each in manifests.items() if kind == "NetworkPolicy"]
    chosen = [each for each in policies if each["podSelector"].get("matchLabels", {}).items() <= labels.items()]
    return [rule for each in chosen for rule in each.get("egress", [])]


def test_every_service_reaches_the_trace_collector(manifests: Manifests) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for name in SERVICES:
        assert {"to": [peer], "ports": [{"protocol": "TCP", "port": 4318}]} in allowed_out(manifests, name)


def test_no_service_reaches_what_no_rule_names(manifests: Manifests) -> None:
    for name in SERVICES:
        assert all("to" in rule for rule in allowed_out(manifests, name))


def test_volumes_can_be_shared_where_there_are_several_nodes(kubectl: Program) -> None:
    for overlay in OVERLAYS:
        modes = [
            each["spec"]["accessModes"]
            for (kind, _), each in rendered(kubectl, overlay).items()
            if kind == "PersistentVolumeClaim"
        ]
        assert modes == 2 * [["ReadWriteOnce" if overlay == "cpu" else "ReadWriteMany"]], overlay


def test_selectors_find_the_pods(manifests: Manifests) -> None:
    for name in SERVICES:
        labels = manifests["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        for selector in (
            manifests["Service", name]["spec"]["selector"],
            manifests["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"],
            manifests["NetworkPolicy", name]["spec"]["podSelector"]["matchLabels"],
        ):
            assert selector.items() <= labels.items()


def test_replicas_of_the_services_are_found_one_by_one(manifests: Manifests) -> None:
    for name in ("llm", "token2wav"):
        assert manifests["Service", name]["spec"]["clusterIP"] == "None"


def test_gpus_are_asked_for_as_the_overlay_says(kubectl: Program) -> None:
    wanted = {"cpu": None, "single-gpu": "nvidia.com/gpu.shared"}
    for overlay in OVERLAYS:
        for name, _, container in containers(rendered(kubectl, overlay)):
            resource = None if name == "gateway" else wanted.get(overlay, "nvidia.com/gpu")
            limits = container["resources"]["limits"]
            assert [key for key in limits if key.startswith("nvidia.com/")] == ([resource] if resource else [])


def test_each_deployment_has_one_autoscaler(kubectl: Program) -> None:
    objects = rendered(kubectl, AUTOSCALED)
    targets = [each["spec"]["scaleTargetRef"]["name"] for (kind, _), each in objects.items() if kind == "ScaledObject"]
    assert sorted(targets) == sorted(SERVICES)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_apply_sets_the_number_of_replicas_where_no_autoscaler_does(overlay: str, kubectl: Program) -> None:
    for name in SERVICES:
        spec = rendered(kubectl, overlay)["Deployment", name]["spec"]
        assert ("replicas" in spec) == (overlay != AUTOSCALED)


def test_the_cluster_s_rules_are_those_of_the_file_that_promtool_checks(kubectl: Program) -> None:
    done = subprocess.run([sys.executable, str(OBSERVABILITY / "make_prometheus_rule.py"), "--check"], timeout=60)
    assert done.returncode == 0
    rules = yaml.safe_load((OBSERVABILITY / "alerts.yml").read_text())
    assert rendered(kubectl, AUTOSCALED)["PrometheusRule", "cosydit"]["spec"] == rules


def test_no_replica_that_loads_within_its_probe_s_time_is_an_alert(kubectl: Program) -> None:
    objects = rendered(kubectl, AUTOSCALED)
    starts = {name: container["startupProbe"] for name, _, container in containers(objects)}
    groups = objects["PrometheusRule", "cosydit"]["spec"]["groups"]
    told = [rule for group in groups for rule in group["rules"] if rule.get("alert") in ("ReplicaDown", "ServiceGone")]
    for name, probe in starts.items():
        limits = [rule["for"] for rule in told if re.search(rf"\b{name}\b", rule["expr"])]
        assert len(limits) == 2, name
        for limit in limits:
            assert 60 * int(limit.removesuffix("m")) > probe["failureThreshold"] * probe["periodSeconds"], name


def test_the_autoscalers_signals_are_those_of_the_dashboard_and_the_alerts() -> None:
    watched = "".join(path.read_text() for path in (DEPLOY / "observability").rglob("*.*") if path.is_file())
    queries = (KUSTOMIZE / "components/autoscaled/scaled-objects.yaml").read_text()
    names = set(re.findall(r"cosydit_\w+", queries))
    assert len(names) >= 5
    assert names <= set(re.findall(r"cosydit_\w+", watched))


def test_a_service_reaches_another_at_each_port_that_its_command_names(manifests: Manifests) -> None:
    for name, _, container in containers(manifests):
        for peer, port in re.findall(r"(llm|token2wav):(\d+)\b", " ".join(container["command"])):
            out = [rule for rule in allowed_out(manifests, name) if rule.get("to") == [_pods(peer)]]
            taken = [
                rule for rule in manifests["NetworkPolicy", peer]["spec"]["ingress"] if _pods(name) in rule["from"]
            ]
            for rules in (out, taken):
                assert int(port) in {each["port"] for rule in rules for each in rule["ports"]}, (name, peer, port)
            assert int(port) in {each["port"] for each in manifests["Service", peer]["spec"]["ports"]}


def _pods(name: str) -> Manifest:
    return {"podSelector": {"matchLabels": {"app.kubernetes.io/name": name}}}
