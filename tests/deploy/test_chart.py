"""The Helm chart is linted and rendered by Helm itself, and what comes out fits callgate."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from callgate.config.schema import InstanceTable
from callgate.core.version import __version__
from tests.deploy.programs import CHART, TOOLS, accept, helm, run, validate
from tests.needs import needs

pytestmark = needs("deploy tools")

REQUIRED = {"store": {"existingSecret": "callgate-db"}, "secretsKey": {"existingSecret": "callgate-key"}}
FULL: dict[str, Any] = {
    "store": {"existingSecret": "callgate-db", "listenUrlKey": "direct"},
    "secretsKey": {"existingSecret": "callgate-key"},
    "imagePullSecrets": [{"name": "pull"}],
    "servers": {
        "replicas": 3,
        "port": 5188,
        "publicUrl": "https://callgate.test",
        "settings": "[limits]\nconcurrency = 8\n",
        "drainSeconds": 40,
        "storage": {"size": "1Gi", "storageClassName": "fast"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "podAnnotations": {"a/b": "c"},
    },
    "autoscaling": {"enabled": True},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls", "annotations": {"x/y": "1h"}},
    "networkPolicy": {
        "from": [{"namespaceSelector": {}}],
        "egress": [{"ports": [{"port": 443}]}],
        "workerEgress": [{"ports": [{"port": 443}]}],
    },
    "workers": [
        {"pool": "build", "replicas": 2, "tokenSecret": {"name": "build", "key": "t"}, "workspace": {"size": "1Gi"}},
        {"pool": "docs", "tokenSecret": {"name": "docs"}, "seccompProfile": {"type": "Unconfined"}},
    ],
}
"""Everything that the chart can make."""


class Rendered:
    def __init__(self, values: dict[str, Any], directory: Path) -> None:
        self.values = directory / "values.json"
        self.values.write_text(json.dumps(values))
        text = helm("template", "rel", str(CHART), "--namespace", "ns", "--values", str(self.values))
        self.file = directory / "manifests.yaml"
        self.file.write_text(text)
        self.all: list[Any] = [each for each in yaml.safe_load_all(text) if each]

    def of(self, kind: str, name: str | None = None) -> Any:
        (found,) = [e for e in self.all if e["kind"] == kind and name in (None, e["metadata"]["name"])]
        return found

    def containers(self) -> list[Any]:
        pods = [e["spec"]["template"]["spec"] for e in self.all if e["kind"] in ("StatefulSet", "Deployment")]
        return [container for pod in pods for container in pod["containers"]]


@pytest.fixture(params=["required", "full"])
def rendered(request: pytest.FixtureRequest, tmp_path: Path) -> Rendered:
    return Rendered(REQUIRED if request.param == "required" else FULL, tmp_path)


def test_helm_finds_nothing_wrong_with_the_chart(rendered: Rendered) -> None:
    helm("lint", "--strict", str(CHART), "--values", str(rendered.values))


@pytest.mark.parametrize("version", ["1.27", "1.31", "1.37"])
def test_every_manifest_is_one_that_kubernetes_takes(version: str, rendered: Rendered) -> None:
    assert validate(rendered.file, version).count(f" against version {version}") == len(rendered.all)


def test_a_field_that_kubernetes_does_not_know_is_found(tmp_path: Path) -> None:
    rendered = Rendered(REQUIRED, tmp_path)
    rendered.file.write_text(rendered.file.read_text().replace("readinessProbe", "readynessProbe"))
    with pytest.raises(AssertionError, match="readynessProbe"):
        validate(rendered.file, "1.31")


@pytest.mark.parametrize(
    "missing", ["store.existingSecret", "secretsKey.existingSecret", "workers[].pool", "workers[].tokenSecret"]
)
def test_a_value_that_must_be_given_is_asked_for_by_name(missing: str, tmp_path: Path) -> None:
    values = json.loads(json.dumps(FULL))
    table, key = missing.split(".")
    (values["workers"][0] if table == "workers[]" else values[table])[key] = ""
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    words = [str(TOOLS / "bin" / "helm"), "template", "rel", str(CHART), "--values", str(file)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ran.returncode != 0 and missing in ran.stderr


def test_our_command_line_takes_what_the_pods_run(rendered: Rendered) -> None:
    for container in rendered.containers():
        accept(container["args"])


def test_ports_probes_and_addresses_agree(rendered: Rendered) -> None:
    servers = rendered.of("StatefulSet")["spec"]
    (container,) = servers["template"]["spec"]["containers"]
    (port,) = container["ports"]
    address = container["args"][container["args"].index("--http") + 1]
    assert address == f"0.0.0.0:{port['containerPort']}"
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    for service in (each for each in rendered.all if each["kind"] == "Service"):
        assert [each["targetPort"] for each in service["spec"]["ports"]] == [port["name"]]
        assert service["spec"]["selector"].items() <= servers["template"]["metadata"]["labels"].items()
    headless = rendered.of("Service", servers["serviceName"])["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    advertised = {each["name"]: each.get("value") for each in container["env"]}["CALLGATE_ADVERTISE_URL"]
    host = f"$(POD_NAME).{servers['serviceName']}.$(POD_NAMESPACE).svc"
    assert advertised == f"http://{host}:{port['containerPort']}"


def test_workers_dial_the_very_names_that_servers_advertise(tmp_path: Path) -> None:
    rendered = Rendered(FULL, tmp_path)
    servers, port = rendered.of("StatefulSet"), FULL["servers"]["port"]
    name, service = servers["metadata"]["name"], servers["spec"]["serviceName"]
    for pool in ("build", "docs"):
        words = rendered.of("Deployment", f"{name}-worker-{pool}")["spec"]["template"]["spec"]["containers"][0]["args"]
        dialled = [words[n + 1] for n, word in enumerate(words) if word == "--server"]
        assert dialled == [f"http://{name}-{n}.{service}.ns.svc:{port}" for n in (0, 1)]  # minReplicas


def test_a_pod_has_time_to_drain_before_it_is_killed(rendered: Rendered) -> None:
    settings = tomllib.loads(rendered.of("ConfigMap")["data"]["settings.toml"])
    pod = rendered.of("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    slept = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    needed = slept + settings["instance"]["drain_seconds"] + 10
    assert pod["terminationGracePeriodSeconds"] >= needed
    assert "drain_seconds" in InstanceTable.__struct_fields__


def test_secrets_come_from_secrets_and_stand_nowhere_else(tmp_path: Path) -> None:
    rendered = Rendered(FULL, tmp_path)
    (container,) = rendered.of("StatefulSet")["spec"]["template"]["spec"]["containers"]
    given = {
        e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"] if "secretKeyRef" in e.get("valueFrom", {})
    }
    assert given == {
        "CALLGATE_STORE_URL": {"name": "callgate-db", "key": "url"},
        "CALLGATE_STORE_LISTEN_URL": {"name": "callgate-db", "key": "direct"},
        "CALLGATE_SECRETS_KEY": {"name": "callgate-key", "key": "key"},
    }
    settings = tomllib.loads(rendered.of("ConfigMap")["data"]["settings.toml"])
    assert settings["secrets"]["key_env"] in given
    assert not [each for each in rendered.all if each["kind"] == "Secret"]


def test_no_worker_has_or_reaches_the_database(tmp_path: Path) -> None:
    rendered = Rendered(FULL, tmp_path)
    for each in (each for each in rendered.all if each["kind"] == "Deployment"):
        assert "STORE" not in json.dumps(each) and "callgate-db" not in json.dumps(each)
    policy = rendered.of("NetworkPolicy", "rel-callgate-workers")["spec"]
    ports = {port["port"] for rule in policy["egress"] for port in rule.get("ports", [])}
    assert policy["ingress"] == [] and 5432 not in ports


def test_pods_run_as_an_ordinary_user_without_rights(rendered: Rendered) -> None:
    for each in (each for each in rendered.all if each["kind"] in ("StatefulSet", "Deployment")):
        pod = each["spec"]["template"]["spec"]
        assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False)
        assert pod["enableServiceLinks"] is False
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert (rights["allowPrivilegeEscalation"], rights["capabilities"]) == (False, {"drop": ["ALL"]})


def test_the_chart_has_the_version_of_callgate() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_the_lock_of_the_budget_lets_one_server_go_at_a_time(rendered: Rendered) -> None:
    budget = rendered.of("PodDisruptionBudget")["spec"]
    labels = rendered.of("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert budget["maxUnavailable"] == 1 and budget["selector"]["matchLabels"].items() <= labels.items()


def test_the_load_balancer_configuration_is_one_that_caddy_takes() -> None:
    config = str(CHART.parents[1] / "Caddyfile")
    run(str(TOOLS / "bin" / "caddy"), "validate", "--config", config, "--adapter", "caddyfile")
