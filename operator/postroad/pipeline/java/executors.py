"""Executors on Kubernetes: the settings of Spark with which a driver makes them as pods, and how
their pods start.

A driver runs in client mode in a pod that owns its executors. They share a secret that no
description of a pod has.
Source: Spark documentation (Running on Kubernetes; Security)."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir

from postroad.errors import InvalidSettings

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = "SPARK_JAVA_OPT_"

_OF_KUBERNETES = "-Dspark.master=k8s://driver"
"""Without it, an executor that has not reached its driver yet reads no file with a secret."""

RUN_FOLDER = Path(gettempdir()) / "postroad-run"
"""Directory where the driver and each of its executors have their key stores and the secret: the
same folder in each of their pods."""

SECRET_FILE = RUN_FOLDER / "secret"

MILLICPUS_OF_A_TASK = 500
"""CPU that a pod requests for each task at a time, which waits for servers half of the time."""

OVERHEAD = "0.4"
"""Of the memory of Java: what a pod has beside it, for Python and for buffers."""


@dataclass(frozen=True, slots=True)
class Executors:
    """Facts that a driver is given about its executors. `memory`: of their Java, as `1536Mi` or
    `2Gi`; `template`: the file of a pod in JSON, whose `container` runs the executor."""

    instances: int
    cores: int
    memory: str
    namespace: str
    image: str
    template: str
    container: str

    @classmethod
    def read(cls, file: Path) -> Executors:
        """Raises: InvalidSettings."""
        try:
            return cls(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise InvalidSettings(
                f"POSTROAD_PIPELINE_EXECUTORS_FILE: {file} does not describe executors: {error}"
            ) from error

    def settings(self, pod_name: str, pod_ip: str) -> Mapping[str, str]:
        """Return the settings of the driver in this pod, which owns its executors."""
        kubernetes = {
            "namespace": self.namespace,
            "container.image": self.image,
            "driver.pod.name": pod_name,
            "executor.podTemplateFile": self.template,
            "executor.podTemplateContainerName": self.container,
            "executor.request.cores": f"{self.cores * MILLICPUS_OF_A_TASK}m",
            "memoryOverheadFactor": OVERHEAD,
            # So that a driver needs no rights to ConfigMaps, Services and claims of volumes.
            "executor.disableConfigMap": "true",
            "driver.service.deleteOnTermination": "false",
            "driver.ownPersistentVolumeClaim": "false",
            "driver.reusePersistentVolumeClaim": "false",
        }
        return {
            "spark.driver.host": pod_ip,
            "spark.driver.bindAddress": pod_ip,
            "spark.executor.instances": str(self.instances),
            "spark.executor.cores": str(self.cores),
            "spark.executor.memory": self.memory.removesuffix("i").lower(),
            "spark.executorEnv.POSTROAD_PIPELINE_POD_NAME": pod_name,
            "spark.authenticate": "true",
            "spark.authenticate.secret.file": str(SECRET_FILE),
            "spark.network.crypto.enabled": "true",
            **{f"spark.kubernetes.{name}": value for name, value in kubernetes.items()},
        }


def run_secret(logins: Iterable[Path], pod_name: str) -> str:
    """Return the secret of one run, from the files of logins that its pods have. A user who may
    only read pods lacks them: a driver's message can make an executor run anything. Raises:
    InvalidSettings without such files."""
    files = [file for folder in logins for file in sorted(folder.iterdir()) if file.is_file()]
    if not files:
        raise InvalidSettings(
            "executors need a secret that they share with the driver, and no server has a login",
            hint="name a Secret with the login of Cassandra or of the object store",
        )
    key = sha256(b"".join(sha256(file.read_bytes()).digest() for file in files)).digest()
    return hmac.digest(key, pod_name.encode(), "sha256").hex()


def java_command(environment: Mapping[str, str], java: Path, classpath: str) -> list[str]:
    """Return the command of an executor, as Spark's own images have it, from the variables of its
    container. Raises: InvalidSettings outside of such a container."""
    try:
        options = sorted(
            (int(name.removeprefix(_OPTION)), value)
            for name, value in environment.items()
            if name.startswith(_OPTION)
        )
        memory = environment["SPARK_EXECUTOR_MEMORY"]
        return [
            *(str(java), *(value for _, value in options), f"-Xms{memory}", f"-Xmx{memory}"),
            _OF_KUBERNETES,
            *("-cp", classpath, _BACKEND),
            *("--driver-url", environment["SPARK_DRIVER_URL"]),
            *("--executor-id", environment["SPARK_EXECUTOR_ID"]),
            *("--cores", environment["SPARK_EXECUTOR_CORES"]),
            *("--app-id", environment["SPARK_APPLICATION_ID"]),
            *("--hostname", environment["SPARK_EXECUTOR_POD_IP"]),
            *("--resourceProfileId", environment["SPARK_RESOURCE_PROFILE_ID"]),
            *("--podName", environment["SPARK_EXECUTOR_POD_NAME"]),
        ]
    except KeyError as error:
        raise InvalidSettings(
            f"{error.args[0]} is not set: a driver of Spark starts executors, as pods"
        ) from error
