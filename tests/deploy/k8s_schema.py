"""Checks whether Kubernetes would accept an object: all fields are known and of
their type, and no required field is missing.

Kubernetes' own kinds are checked against the models of Debian's
python3-kubernetes (Kubernetes 1.22), newer fields and other projects' kinds
against the tables below, which have the fields that deploy/k8s uses. To use
another field, read the kind's reference and add it.
"""

import re

from kubernetes import client

# A table: field -> type; a field with "!" after its name is required. A type is
# a Python type, a table, a list with one type, a set of words, the name of a
# Kubernetes model, or ANY.
ANY = object()
STRINGS = "dict(str, str)"

_RELABELING = {"sourceLabels": [str], "separator": str, "targetLabel": str,
               "regex": str, "replacement": str, "action": str}
_ENDPOINT = {"port!": str, "path": str, "interval": str,
             "relabelings": [_RELABELING]}
_RULE = {"alert": str, "record": str, "expr!": str, "for": str,
         "labels": STRINGS, "annotations": STRINGS}
_KEY = {"algorithm": str, "size": int, "rotationPolicy": str}

# Fields that are newer than the Kubernetes models.
NEWER = {
    "V1JobSpec": {
        "podReplacementPolicy": {"Failed", "TerminatingOrFailed"},
        "podFailurePolicy": {"rules!": [{
            "action!": {"Count", "FailIndex", "FailJob", "Ignore"},
            "onExitCodes": {"containerName": str, "operator!": {"In", "NotIn"},
                            "values!": [int]},
            "onPodConditions": [{"type!": str,
                                 "status!": {"True", "False", "Unknown"}}]}]}},
}

OTHERS = {
    ("cert-manager.io/v1", "Issuer"): {
        "selfSigned": {}, "ca": {"secretName!": str}},
    ("cert-manager.io/v1", "Certificate"): {
        "secretName!": str, "commonName": str, "isCA": bool, "dnsNames": [str],
        "duration": str, "renewBefore": str, "usages": [str],
        "privateKey": _KEY, "issuerRef!": {"name!": str, "kind": str}},
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {
        "jobLabel": str, "selector!": "V1LabelSelector",
        "endpoints!": [_ENDPOINT]},
    ("monitoring.coreos.com/v1", "PodMonitor"): {
        "jobLabel": str, "selector!": "V1LabelSelector",
        "podMetricsEndpoints!": [_ENDPOINT]},
    ("monitoring.coreos.com/v1", "PrometheusRule"): {
        "groups": [{"name!": str, "interval": str, "rules!": [_RULE]}]},
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "failurePolicy": {"maxRestarts": int, "rules": [{
            "name": str,
            "action!": {"FailJobSet", "RestartJobSet",
                        "RestartJobSetAndIgnoreMaxRestarts"},
            "onJobFailureReasons": [{
                "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes",
                "MaxFailedIndexesExceeded", "PodFailurePolicy"}],
            "targetReplicatedJobs": [str]}]},
        "ttlSecondsAfterFinished": int,
        "network": {"enableDNSHostnames": bool},
        "replicatedJobs": [{"name!": str, "replicas": int,
                            "template!": "V1JobTemplateSpec"}]},
}

KUBERNETES = {
    ("v1", "Namespace"), ("v1", "Service"), ("v1", "ServiceAccount"),
    ("apps/v1", "StatefulSet"), ("batch/v1", "Job"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
}

PLAIN = {"str": str, "int": int, "bool": bool, "object": ANY}


def check(thing):
    """Raises ValueError, which names the field, unless `thing` is valid."""
    kind = (thing.get("apiVersion"), thing.get("kind"))
    what = f"{kind[1]} {thing['metadata']['name']}"
    if kind in KUBERNETES:
        _check(thing, f"V1{kind[1]}", what)
    elif kind in OTHERS:
        table = {"apiVersion!": str, "kind!": str,
                 "metadata!": "V1ObjectMeta", "spec!": OTHERS[kind]}
        _check(thing, table, what)
    else:
        raise ValueError(f"{what}: there is no {kind}")


def _check(value, kind, path):
    if kind is ANY:
        return
    if isinstance(kind, dict):
        _check_table(value, kind, path)
    elif isinstance(kind, list):
        _check_each(value, kind[0], path)
    elif isinstance(kind, set):
        if value not in kind:
            raise ValueError(f"{path}: {value!r} is none of {sorted(kind)}")
    elif isinstance(kind, str):
        _check_model(value, kind, path)
    elif not isinstance(value, kind) or (
            kind is int and isinstance(value, bool)):
        raise ValueError(f"{path}: {value!r} is no {kind.__name__}")


def _check_table(value, table, path):
    _check(value, dict, path)
    fields = {name.rstrip("!"): kind for name, kind in table.items()}
    for name, part in value.items():
        if name not in fields:
            raise ValueError(f"{path}: there is no field {name}")
        _check(part, fields[name], f"{path}.{name}")
    for name in table:
        if name.endswith("!") and name[:-1] not in value:
            raise ValueError(f"{path}: {name[:-1]} is missing")


def _check_each(value, kind, path):
    _check(value, list, path)
    for number, part in enumerate(value):
        _check(part, kind, f"{path}[{number}]")


def _check_model(value, kind, path):
    if kind in PLAIN:
        _check(value, PLAIN[kind], path)
        return
    of_list = re.fullmatch(r"list\[(.*)\]", kind)
    if of_list:
        _check_each(value, of_list[1], path)
        return
    of_dict = re.fullmatch(r"dict\(str, (.*)\)", kind)
    if of_dict:
        # Amounts may be written as numbers.
        amounts = path.endswith((".requests", ".limits"))
        for name, part in value.items():
            _check(part, (int if amounts and isinstance(part, int)
                          else of_dict[1]), f"{path}.{name}")
        return
    model = getattr(client, kind)
    names = {json: name for name, json in model.attribute_map.items()}
    _check(value, dict, path)
    newer = {k: v for k, v in value.items() if k in NEWER.get(kind, {})}
    _check_table(newer, NEWER.get(kind, {}), path)
    value = {k: v for k, v in value.items() if k not in newer}
    for name, part in value.items():
        if name not in names:
            raise ValueError(f"{path}: there is no field {name}")
        _check(part, model.openapi_types[names[name]], f"{path}.{name}")
    try:  # The model refuses what is missing, or none of its enumeration.
        model(**{names[name]: part for name, part in value.items()})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
