"""The manifest of docs/deployment.md: what the API server asks for, and that its names are those of the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from tests.utils.serving.conftest import service
from utils.app.cli import parse_dataclass
from utils.serving.__main__ import MOST_CLOSING
from utils.serving.app import create_app
from utils.serving.arguments import ServeArguments
from utils.serving.service import CLOSING_SECONDS

PAGE = Path(__file__).parents[3] / "docs/deployment.md"
REQUIRED = {  # by the schemas of Kubernetes 1.34
    "Deployment": ("apps/v1", ["selector", "template"]),
    "Service": ("v1", ["selector", "ports"]),
    "HorizontalPodAutoscaler": ("autoscaling/v2", ["scaleTargetRef", "maxReplicas"]),
}


@pytest.fixture(scope="module")
def parts() -> dict[str, dict[str, Any]]:
    [text] = re.findall(r"^```yaml needs: Kubernetes\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return {part["kind"]: part for part in yaml.safe_load_all(text)}


def test_the_parts_are_whole_and_name_each_other(parts: dict[str, dict[str, Any]]) -> None:
    assert {kind: (part["apiVersion"], part["metadata"]["name"]) for kind, part in parts.items()} == {
        kind: (version, "bart") for kind, (version, _) in REQUIRED.items()
    }
    for kind, (_, fields) in REQUIRED.items():
        assert {*fields} <= {*parts[kind]["spec"]}
    deployment, reached, scaler = (part["spec"] for part in parts.values())
    labels = deployment["template"]["metadata"]["labels"]
    assert labels == deployment["selector"]["matchLabels"] == reached["selector"]
    [container] = deployment["template"]["spec"]["containers"]
    assert {"name", "image"} <= {*container}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    [port] = container["ports"]
    assert [each["targetPort"] for each in reached["ports"]] == [port["name"]]
    assert {container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("liveness", "readiness")} == {port["name"]}
    assert deployment["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in deployment["template"]["spec"]["volumes"]}
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "bart"}


def test_its_options_paths_and_metric_are_those_of_the_service(
    parts: dict[str, dict[str, Any]], export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    python, module, program, model = container["command"]
    assert (python, module, program) == ("python", "-m", "utils.serving")
    assert model.startswith(f"{container['volumeMounts'][0]['mountPath']}/")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    args = parse_dataclass(ServeArguments, [model, *container["args"]], "")
    assert (args.port, args.host) == (container["ports"][0]["containerPort"], "0.0.0.0")
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    ends = pause + args.drain_seconds + MOST_CLOSING + CLOSING_SECONDS
    assert ends < pod["terminationGracePeriodSeconds"]
    [metric] = parts["HorizontalPodAutoscaler"]["spec"]["metrics"]
    with TestClient(create_app(service(export, allowed_hosts=args.allowed_hosts)), "http://bart") as client:
        for kind in ("liveness", "readiness"):
            assert client.get(container[f"{kind}Probe"]["httpGet"]["path"]).status_code == 200
        assert client.get("/livez", headers={"host": "bart.default.svc"}).status_code == 200
        assert f"\n{metric['pods']['metric']['name']} 0.0\n" in client.get("/metrics").text
