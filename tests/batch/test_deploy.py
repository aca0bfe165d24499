"""The example of a deployment says what the sandbox needs, and asks for nothing that it does not need."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

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


def test_the_trial_of_the_container_is_a_sound_script() -> None:
    assert subprocess.run(["sh", "-n", str(DEPLOY / "trial.sh")], check=False).returncode == 0
