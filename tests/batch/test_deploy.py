"""The example of a deployment says what the sandbox needs, and asks for nothing that it does not need."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.cli_program import sonde

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
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


def test_the_container_is_made_of_what_the_project_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (DEPLOY / "Containerfile").read_text()
    (extras,) = re.findall(r"/src\[([a-z,]+)\]", text)
    copied = [path for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for path in line.split()[:-1]]

    assert copied and all((ROOT / path).exists() for path in copied)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    for version in re.findall(r"^FROM python:3\.(\d+)", text, re.MULTILINE):
        assert int(version) >= int(project["requires-python"].removeprefix(">=3."))


def test_the_cluster_is_given_a_command_that_sonde_understands(tmp_path: Path) -> None:
    _, command, manifest, *flags = shlex.split(documents()["RayJob"]["spec"]["entrypoint"])

    said = sonde(command, manifest, *flags, "--base-url", "http://127.0.0.1:9/v1", cwd=tmp_path)

    assert said.returncode == 2
    assert manifest in said.stderr, "only the manifest, which is on the cluster's volume, is missing here"


def kustomized() -> list[dict[str, Any]]:
    """What the kustomization names, and nothing else is in its folder."""
    folder = DEPLOY / "kubernetes"
    named = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in folder.iterdir()} == {"kustomization.yaml", *named}
    return [each for name in named for each in yaml.safe_load_all((folder / name).read_text())]


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [each for each in kustomized() if each["kind"] in kinds]


def test_watch_and_serve_run_as_tight_as_the_containers_that_are_tried() -> None:
    for workload in of_kind("StatefulSet", "Deployment"):
        pod = workload["spec"]["template"]["spec"]
        assert pod["initContainers"][0]["command"] == ["sonde", "doctor"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod["initContainers"], *pod["containers"]):
            tight = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["securityContext"] == tight


def test_what_watch_and_serve_refer_to_is_there() -> None:
    claims = {each["metadata"]["name"] for each in of_kind("PersistentVolumeClaim")}
    labels: list[dict[str, str]] = []
    ports: set[str] = set()
    for workload in of_kind("StatefulSet", "Deployment"):
        spec = workload["spec"]
        pod = spec["template"]["spec"]
        labels.append(spec["template"]["metadata"]["labels"])
        assert spec["selector"]["matchLabels"] == labels[-1]
        volumes = {
            each["name"] for each in (*pod["volumes"], *(c["metadata"] for c in spec.get("volumeClaimTemplates", [])))
        }
        assert {
            each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each
        } <= claims
        for container in (*pod["initContainers"], *pod["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["image"] == "sonde-watch"
            ports |= {port["name"] for port in container.get("ports", [])}
    (service,) = of_kind("Service")
    assert service["spec"]["selector"] in labels
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_the_pod_of_a_watch_gets_a_command_that_sonde_understands(tmp_path: Path) -> None:
    (watch,) = of_kind("StatefulSet")[0]["spec"]["template"]["spec"]["containers"]

    said = sonde(*watch["command"][1:], *watch["args"], cwd=tmp_path)

    assert said.returncode == 2
    assert "SONDE_LISTEN_TOKEN" in said.stderr, "only the token, which is in the cluster's secret, is missing here"


@pytest.mark.parametrize("script", ["containers.sh", "pythons.sh"])
def test_the_scripts_that_try_places_are_sound(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(ROOT / "scripts" / script)], check=False).returncode == 0


def test_the_trial_of_the_container_is_a_sound_script() -> None:
    assert subprocess.run(["sh", "-n", str(DEPLOY / "trial.sh")], check=False).returncode == 0
