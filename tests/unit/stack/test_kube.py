"""Credentials and command lines of Kubernetes' parts."""

import json
import ssl
import subprocess
from pathlib import Path

from stack import cluster_files, kube
from stack.cluster_files import Network
from stack.records import Record

NETWORK = Network("pr-0123abcd", "198.18.0.1", "198.18.0.2")


def test_the_version_is_that_of_go_mod() -> None:
    assert kube.kubernetes_version().startswith("1.34.")


def test_a_release_requires_the_modules_of_its_repository_as_they_are_published() -> None:
    requirements = (
        "require (\n\tgolang.org/x/exp v0.0.0-2024 // indirect\n\tk8s.io/api v0.0.0\n)\n"
        "replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
    )

    assert kube.requiring_published(requirements, "1.31.13") == (
        "require (\n\tgolang.org/x/exp v0.0.0-2024 // indirect\n\tk8s.io/api v0.31.13\n)\n"
        "replace (\n)\n"
    )


def test_users_have_tokens_of_their_own(tmp_path: Path) -> None:
    record = Record("native", secrets=kube.new_secrets())

    kube.write_credentials(tmp_path / "c", record, "https://127.0.0.1:1")

    lines = (tmp_path / "c" / "tokens.csv").read_text().splitlines()
    assert len({line.split(",")[0] for line in lines}) == len(kube.USERS)
    assert f'{record.secrets["admin"]},admin,admin,"system:masters"' in lines
    assert record.secrets["admin"] in (tmp_path / "c" / "admin.kubeconfig").read_text()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "c").iterdir())


def test_the_service_accounts_key_survives_a_restart(tmp_path: Path) -> None:
    record = Record("native", secrets=kube.new_secrets())
    kube.write_credentials(tmp_path / "c", record, "https://127.0.0.1:1")
    before = (tmp_path / "c" / "service-accounts.key").read_bytes()

    kube.write_credentials(tmp_path / "c", record, "https://127.0.0.1:1")

    assert (tmp_path / "c" / "service-accounts.key").read_bytes() == before


def test_the_api_server_comes_to_aggregated_apis_by_a_certificate_that_vouches_for_itself(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "c"
    kube.write_credentials(
        folder, Record("native", secrets=kube.new_secrets()), "https://127.0.0.1:1"
    )

    options = dict(
        each.split("=")
        for each in kube.api_server("kube", str(folder), "127.0.0.1", 1, 2)
        if "=" in each
    )
    certificate = options["--proxy-client-cert-file"]
    command = ["openssl", "verify", "-purpose", "sslclient", "-CAfile"]
    command += [options["--requestheader-client-ca-file"], certificate]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(certificate, options["--proxy-client-key-file"])
    context.load_verify_locations(certificate)
    [authority] = context.get_ca_certs()
    assert authority["subject"] == ((("commonName", options["--requestheader-allowed-names"]),),)


def test_no_configuration_keeps_a_placeholder(tmp_path: Path) -> None:
    cluster_files.write_files(tmp_path, NETWORK)

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 7
    assert [path for path in written if "{{" in path.read_text()] == []


def test_the_sandbox_image_is_there_before_the_kubelet(tmp_path: Path) -> None:
    plan = cluster_files.plan(tmp_path, tmp_path / "kube", NETWORK)

    steps = [json.dumps(step) for step in plan["steps"]]  # type: ignore[attr-defined]
    imported = next(i for i, step in enumerate(steps) if "pause.tar" in step)
    kubelet = next(i for i, step in enumerate(steps) if '"start": "kubelet"' in step)
    assert imported < kubelet
