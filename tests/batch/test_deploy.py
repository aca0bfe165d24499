"""The example of a deployment says what the sandbox needs, and asks for nothing that it does not need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
LAYERS = ("no_new_privs", "rlimits", "landlock", "seccomp")


def documents() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())}


def pods() -> list[dict[str, Any]]:
    cluster = documents()["RayJob"]["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_every_pod_asks_the_doctor_first_and_has_no_privileges() -> None:
    for pod in pods():
        assert pod["initContainers"][0]["command"] == ["sonde", "doctor"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_every_pod_sees_the_one_volume_and_keys_are_with_the_head_alone() -> None:
    head, *workers = pods()
    assert documents()["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods():
        assert pod["containers"][0]["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert "envFrom" in head["containers"][0]
    assert all("envFrom" not in pod["containers"][0] for pod in workers)


def test_both_files_name_the_layers_that_the_sandbox_needs() -> None:
    for name in ("kuberay.yaml", "Containerfile"):
        text = (DEPLOY / name).read_text()
        assert all(layer in text for layer in LAYERS), name
