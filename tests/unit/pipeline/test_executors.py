"""Executors on Kubernetes: what the driver starts with, what they share, and how they start."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroad.cli import main
from postroad.cli.pipeline.spark import spark_session, stores_of_a_pod
from postroad.errors import InvalidSettings
from postroad.pipeline.java import executors
from postroad.pipeline.java.executors import Executors, java_command, run_secret
from postroad.pipeline.java.key_stores import KeyStores
from postroad.settings import from_environment

EXECUTORS = Executors(2, 1, "1536Mi", "mail", "postroad-pipeline:1", "/etc/pod.json", "pipeline")
STARTED = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "1536m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_EXECUTOR_POD_NAME": "postroad-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dfirst=1",
}


@pytest.fixture
def login(tmp_path: Path) -> Path:
    folder = tmp_path / "cassandra"
    folder.mkdir()
    (folder / "username").write_text("postroad")
    (folder / "password").write_text("s3cr3t")
    return folder


def test_a_driver_owns_its_executors_and_trusts_no_other_pod() -> None:
    found = EXECUTORS.settings("archive-1-x", "10.0.0.7")

    assert found["spark.kubernetes.driver.pod.name"] == "archive-1-x"
    assert found["spark.driver.host"] == "10.0.0.7"
    assert (found["spark.executor.instances"], found["spark.executor.memory"]) == ("2", "1536m")
    assert found["spark.authenticate"] == found["spark.network.crypto.enabled"] == "true"
    assert found["spark.kubernetes.executor.disableConfigMap"] == "true"


def test_what_the_operator_wrote_is_read(tmp_path: Path) -> None:
    file = tmp_path / "executors.json"
    file.write_text(json.dumps(asdict(EXECUTORS)))
    assert Executors.read(file) == EXECUTORS
    file.write_text('{"instances": 2}')
    with pytest.raises(InvalidSettings, match="POSTROAD_PIPELINE_EXECUTORS_FILE"):
        Executors.read(file)


def test_a_secret_is_of_one_run_and_of_those_who_have_the_logins(login: Path) -> None:
    first = run_secret([login], "one")

    assert run_secret([login], "one") == first
    assert run_secret([login], "two") != first
    (login / "password").write_text("another")
    assert run_secret([login], "one") != first
    assert "another" not in run_secret([login], "one")
    with pytest.raises(InvalidSettings, match="no server has a login"):
        run_secret([], "one")


def test_an_executor_starts_as_its_driver_wants(tmp_path: Path) -> None:
    found = java_command(STARTED, tmp_path / "java", "/jars/*")

    assert found[:5] == [
        *(str(tmp_path / "java"), "-Dfirst=1", "-Dlast=1"),
        *("-Xms1536m", "-Xmx1536m"),
    ]
    assert "-Dspark.master=k8s://driver" in found[: found.index("-cp")], (
        "else it reads no secret's file"
    )
    assert found[found.index("--driver-url") + 1] == STARTED["SPARK_DRIVER_URL"]
    assert found[found.index("--podName") + 1] == "postroad-exec-1"


def test_outside_of_a_pod_of_a_driver_the_command_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, login: Path
) -> None:
    monkeypatch.setattr(executors, "RUN_FOLDER", tmp_path / "run")
    monkeypatch.setattr(executors, "SECRET_FILE", tmp_path / "run/secret")
    monkeypatch.setenv("POSTROAD_CASSANDRA_LOGIN_FOLDER", str(login))
    monkeypatch.setenv("POSTROAD_PIPELINE_POD_NAME", "one")

    result = CliRunner().invoke(main, ["executor"])

    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "a driver of Spark starts executors" in line or "Java 17" in line
    assert (tmp_path / "run/secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


async def test_a_driver_without_its_pod_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "executors.json"
    file.write_text(json.dumps(asdict(EXECUTORS)))
    settings = from_environment({"POSTROAD_PIPELINE_EXECUTORS_FILE": str(file)})

    with pytest.raises(InvalidSettings, match="POSTROAD_PIPELINE_POD_NAME"):
        stores_of_a_pod(settings)
    with pytest.raises(InvalidSettings, match="POSTROAD_PIPELINE_POD_NAME"):
        async with spark_session(settings, KeyStores(tmp_path), [], "k8s://x"):
            pass
