"""Renders deploy/k8s, and reads how a container of it runs as a process."""

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
K8S = os.path.join(HERE, "..", "..", "deploy", "k8s")
# With a coordinator; an overlay beside them; and jobs.
OVERLAYS = ["base", "overlays/development", "overlays/tls", "overlays/ha"]
OPERATOR = "overlays/prometheus-operator"
ETCD = "examples/etcd"
EXAMPLES = ["examples/indexed-job", "examples/indexed-job-development",
            "examples/indexed-job-gpu", "examples/jobset",
            "examples/jobset-gpu"]


@functools.lru_cache(maxsize=None)
def kubectl_minor():
    """The N of the installed kubectl's version 1.N."""
    version = subprocess.run(
        ["kubectl", "version", "--client", "--output=json"], check=True,
        capture_output=True, text=True).stdout
    return int(re.match(r"\d+", json.loads(version)["clientVersion"]["minor"])[0])


def write_for_old_kubectl(top):
    """Rewrites every kustomization below `top` for a kubectl before 1.21.

    Debian 12 has 1.20, which wants folders in `bases`, and each kind of patch
    under a name of its own.
    """
    for folder, _, files in os.walk(top):
        if "kustomization.yaml" not in files:
            continue
        path = os.path.join(folder, "kustomization.yaml")
        with open(path, encoding="utf-8") as text:
            written = yaml.safe_load(text)
        resources = written.pop("resources")
        patches = written.pop("patches", [])
        written["bases"] = [r for r in resources if not r.endswith(".yaml")]
        written["resources"] = [r for r in resources if r.endswith(".yaml")]
        written["patchesJson6902"] = [p for p in patches if "target" in p]
        written["patchesStrategicMerge"] = [
            p["path"] for p in patches if "target" not in p]
        with open(path, "w", encoding="utf-8") as out:
            yaml.safe_dump({k: v for k, v in written.items() if v}, out)


def render(folder):
    """The objects that kustomize renders from a folder of deploy/k8s."""
    with tempfile.TemporaryDirectory() as scratch:
        top = K8S
        if kubectl_minor() < 21:
            top = shutil.copytree(K8S, os.path.join(scratch, "k8s"))
            write_for_old_kubectl(top)
        # Without the environment's cache and settings.
        done = subprocess.run(["kubectl", "kustomize", os.path.join(top, folder)],
                              check=False, capture_output=True, text=True)
    # Deprecated words cause warnings on standard error.
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{folder}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def of_kind(objects, kind):
    return [thing for thing in objects if thing["kind"] == kind]


def only(things):
    things = list(things)
    assert len(things) == 1, things
    return things[0]


def job_spec(objects):
    """The spec of the only Job, which may be part of a JobSet."""
    thing = only(of_kind(objects, "Job") + of_kind(objects, "JobSet"))
    spec = thing["spec"]
    if thing["kind"] == "JobSet":
        spec = only(spec["replicatedJobs"])["template"]["spec"]
    return spec


def pod_templates(objects):
    for thing in objects:
        if thing["kind"] == "StatefulSet":
            yield thing["spec"]["template"]
        elif thing["kind"] in ("Job", "JobSet"):
            yield job_spec([thing])["template"]


def container(template):
    return only(template["spec"]["containers"])


def environment(template, fields=None):
    """Its variables; `fields` has the values that Kubernetes fills in. A value
    from an optional Secret is not there."""
    values = {}
    for variable in container(template)["env"]:
        if "value" in variable:
            values[variable["name"]] = re.sub(
                r"\$\((\w+)\)", lambda name: values[name[1]],
                variable["value"])
            continue
        if "secretKeyRef" in variable["valueFrom"]:
            assert variable["valueFrom"]["secretKeyRef"]["optional"], variable
            continue
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
        values[variable["name"]] = (
            template["metadata"]["labels"][label[1]] if label
            else (fields or {}).get(path, path))
    return values


def port_number(template, port):
    """The number of a port that may be a name."""
    ports = {p["name"]: p["containerPort"]
             for p in container(template).get("ports", [])}
    return ports.get(port, port)


def seconds(duration):
    """The seconds in "30s" or "1m30s"."""
    unit = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * unit[letter]
               for number, letter in re.findall(r"(\d+)([hms])", duration))


def flags_of(program):
    """{name: help} of a program's --help, with "_" for "-" in names."""
    text = subprocess.run([program, "--help"], check=True, capture_output=True,
                          text=True).stdout
    parts = re.split(r"^  --([a-z][a-z_-]*).*$", text, flags=re.MULTILINE)
    return {name.replace("-", "_"): " ".join(help_text.split())
            for name, help_text in zip(parts[1::2], parts[2::2])}
