"""What deploy/k8s renders to, and how a container of it runs as a process."""

import os
import re
import subprocess

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
K8S = os.path.join(HERE, "..", "..", "deploy", "k8s")
OVERLAYS = ["base", "overlays/development", "overlays/tls",
            "overlays/prometheus-operator"]
EXAMPLES = ["examples/indexed-job", "examples/indexed-job-development",
            "examples/indexed-job-gpu", "examples/jobset",
            "examples/jobset-gpu"]


def render(folder):
    """The objects that `kubectl kustomize` makes of a folder of deploy/k8s."""
    # Without its cache and settings: it is a program of others.
    done = subprocess.run(["kubectl", "kustomize", os.path.join(K8S, folder)],
                          check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{folder}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def of_kind(objects, kind):
    return [thing for thing in objects if thing["kind"] == kind]


def only(things):
    things = list(things)
    assert len(things) == 1, things
    return things[0]


def job_spec(objects):
    """The spec of the one Job, which a JobSet has as a part."""
    thing = only(objects)
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
    """Its variables; `fields` are those that Kubernetes fills in, by path."""
    values = {}
    for variable in container(template)["env"]:
        if "value" in variable:
            values[variable["name"]] = variable["value"]
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
    """Of "30s" or "1m30s"."""
    unit = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * unit[letter]
               for number, letter in re.findall(r"(\d+)([hms])", duration))


def flags_of(program):
    """{name: help} of a program's --help, "-" in names as "_"."""
    text = subprocess.run([program, "--help"], check=True, capture_output=True,
                          text=True).stdout
    parts = re.split(r"^  --([a-z][a-z_-]*).*$", text, flags=re.MULTILINE)
    return {name.replace("-", "_"): " ".join(help_text.split())
            for name, help_text in zip(parts[1::2], parts[2::2])}
