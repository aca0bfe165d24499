"""Is what deploy/ gives to Kubernetes valid? Checked against the CRD of RayJob, which is not part of this repository.

    python scripts/manifests.py ray.io_rayjobs.yaml

The file is helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml of ray-project/kuberay. It also holds Kubernetes' own schema of a pod,
so the pods of deploy/kubernetes are checked too. Fields that the schema does not know are errors, as for `kubectl apply`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

DEPLOY = Path(__file__).parents[1] / "deploy"


def main(crd: str) -> None:
    versions = yaml.safe_load(Path(crd).read_text())["spec"]["versions"]
    schema = closed(next(each for each in versions if each["name"] == "v1")["schema"]["openAPIV3Schema"])
    pod = schema["properties"]["spec"]["properties"]["rayClusterSpec"]["properties"]["headGroupSpec"]["properties"][
        "template"
    ]
    wrong: list[str] = []
    for path in sorted(DEPLOY.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            kind = document["kind"]
            if kind == "RayJob":
                checked, by = document, schema
            elif kind in ("StatefulSet", "Deployment"):
                checked, by = document["spec"]["template"], pod
            else:
                continue
            errors = list(Draft7Validator(by).iter_errors(checked))  # pyright: ignore[reportUnknownMemberType] - its own types are partial
            print(f"{path.relative_to(DEPLOY)}, {kind}: {len(errors)} errors")
            wrong += [f"  {'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in errors]
    if wrong:
        sys.exit("\n".join(wrong))


def closed(node: Any) -> Any:
    """The schema as plain JSON Schema: objects take their own fields only, unless Kubernetes says that unknown ones stay."""
    if isinstance(node, list):
        return [closed(each) for each in node]  # pyright: ignore[reportUnknownVariableType] - any YAML
    if not isinstance(node, dict):
        return node
    plain: dict[str, Any] = {name: closed(value) for name, value in node.items()}  # pyright: ignore[reportUnknownVariableType] - any YAML
    if "properties" in plain and not plain.get("x-kubernetes-preserve-unknown-fields"):
        plain.setdefault("additionalProperties", False)
    if plain.get("nullable") and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    return plain


if __name__ == "__main__":
    main(*sys.argv[1:])
