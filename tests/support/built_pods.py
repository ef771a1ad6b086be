"""The pods of a MailQueue as the operator builds them, each with its file of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from postroad.controller.pods.manifests import wanted_children
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.delivery_settings.delivery import DeliveryFileSettings
from postroad.delivery_settings.files import read_delivery
from postroad.intake_settings.intake_file import IntakeFile, read_intake
from support import resources

NAMESPACE = "mail"


class BuiltPod:
    """A pod of the MailQueue `outgoing`."""

    component: ClassVar[str]
    variable: ClassVar[str]
    """The setting that names its file."""

    def __init__(self, **spec: Any) -> None:
        wanted = resources.mail_queue(NAMESPACE, **{"intake": resources.intake(), **spec})
        wanted["metadata"] |= {"uid": "u1", "generation": 1}
        cluster = QueueClusterSpec.model_validate(resources.queue_cluster(NAMESPACE)["spec"])
        built = wanted_children(Queue.of(wanted), PodContext(cluster, "postroad:1"))
        self.children = {(kind.name, each["metadata"]["name"]): each for kind, each in built}
        self.pod = self.children["Deployment", f"outgoing-{self.component}"]["spec"]["template"][
            "spec"
        ]
        (container,) = self.pod["containers"]
        self.variables = {each["name"]: each["value"] for each in container["env"]}
        volumes = {each["name"]: each for each in self.pod["volumes"]}
        self.mounts = container["volumeMounts"]
        self.mounted = {
            each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]
        }
        assert not any("subPath" in each for each in container["volumeMounts"])

    @property
    def file(self) -> Path:
        """The path of the file of settings."""
        return Path(self.variables[self.variable])

    def text(self) -> str:
        """Return what is in the file of settings."""
        config_map = self.mounted[str(self.file.parent)]["configMap"]["name"]
        return str(self.children["ConfigMap", config_map]["data"][self.file.name])

    def written(self, folder: Path) -> Path:
        (folder / self.file.name).write_text(self.text())
        return folder / self.file.name

    def secret_of(self, file: Path) -> str:
        """Return the name of the Secret whose keys are in the folder of a file."""
        volume = self.mounted[str(file.parent)]["secret"]
        assert "items" not in volume, "a key that is added would replace the pods"
        return str(volume["secretName"])

    def authorities_of(self, file: Path) -> tuple[str, str]:
        """Return kind and name of the object that has the authorities of a file."""
        volume = self.mounted[str(file.parent)]
        ((kind, source),) = ((kind, each) for kind, each in volume.items() if kind != "name")
        assert [each["key"] for each in source["items"]] == [file.name]
        return kind, str(source.get("secretName") or source["name"])

    def folder_of(self, secret: str) -> Path:
        """Return where the keys of a Secret are."""
        names = {
            each["secret"]["secretName"]: folder
            for folder, each in self.mounted.items()
            if "secret" in each
        }
        return Path(names[secret])


class WorkerPod(BuiltPod):
    """A worker, of a MailQueue that has an intake, too."""

    component, variable = "worker", "POSTROAD_WORKER_DELIVERY_FILE"

    def read(self, folder: Path) -> DeliveryFileSettings:
        """Return what the program reads."""
        return read_delivery(self.written(folder))


class IntakePod(BuiltPod):
    """A pod of the intake."""

    component, variable = "intake", "POSTROAD_INTAKE_FILE"

    def read(self, folder: Path) -> IntakeFile:
        """Return what the program reads."""
        return read_intake(self.written(folder))
