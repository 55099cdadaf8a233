"""Certificates and tokens of a coordinator and its clients, for tests."""

import hashlib
import os
import subprocess


def _openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _issue(folder, name, usage, address):
    """A certificate and its key, for `usage` alone."""
    with open(f"{folder}/{name}.ext", "w", encoding="utf-8") as file:
        file.write(f"subjectAltName=IP:{address}\nextendedKeyUsage={usage}\n")
    _openssl(folder, "req", "-new", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
             "-keyout", f"{name}.key", "-out", f"{name}.csr")
    _openssl(folder, "x509", "-req", "-days", "2", "-in", f"{name}.csr",
             "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
             "-extfile", f"{name}.ext", "-out", f"{name}.pem")


def protect(folder, address, jobs):
    """Makes the files in `folder`, for a coordinator at the IP `address`.

    Returns its flags, and the environment of clients that may do everything in
    `jobs` ("train*").
    """
    folder = os.path.join(folder, "protection")
    os.mkdir(folder, 0o700)
    _openssl(folder, "req", "-x509", "-days", "2", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=authority",
             "-keyout", "ca.key", "-out", "ca.pem")
    _issue(folder, "server", "serverAuth", address)
    _issue(folder, "client", "clientAuth", address)
    token = "token-of-a-test"
    with open(f"{folder}/tokens", "w", encoding="utf-8") as file:
        file.write(f"{hashlib.sha256(token.encode()).hexdigest()} member "
                   f"{jobs}\n")
    return ([f"--tls_cert={folder}/server.pem", f"--tls_key={folder}/server.key",
             f"--tls_client_ca={folder}/ca.pem", f"--token_file={folder}/tokens"],
            {"MUSTER_TLS_CA": f"{folder}/ca.pem",
             "MUSTER_TLS_CERT": f"{folder}/client.pem",
             "MUSTER_TLS_KEY": f"{folder}/client.key",
             "MUSTER_TOKEN": token})
