"""Places of lakes: a folder, and the catalog of Iceberg that names the tables, as settings of
Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from postroad.delivery_settings.lake_catalog import CatalogType, LakeCatalog
from postroad.errors import InvalidSettings
from postroad.logins import LoginFolder

NAMESPACE = "lake"
"""The folder of the tables, below that of the queue, where no other catalog names them."""

_CLASS = "org.apache.iceberg.spark.SparkCatalog"
_FILES = {
    "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
    # Servers name folders of S3 by s3://, which is Hadoop's s3a://.
    "hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
}


@dataclass(frozen=True, slots=True)
class LakePlace:
    """Place of a lake: a folder of Hadoop's, with the settings for it, which its repr has not: keys
    are among them; the catalog that names its tables, and their namespace there."""

    folder: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    catalog: LakeCatalog = field(default_factory=LakeCatalog)
    namespace: str = NAMESPACE

    @property
    def is_a_folder(self) -> bool:
        """True if the folder itself is the catalog."""
        return self.catalog.type is CatalogType.HADOOP

    def named(self, table: str) -> str:
        """Return the name of a table. Servers take `entries` for a part of Iceberg's own of a table
        that is called as the namespace."""
        return table if self.is_a_folder else f"mail_{table}"

    def of_spark(self) -> Mapping[str, str]:
        """Return what comes behind `spark.sql.catalog.NAME`. Raises: CredentialsMissing."""
        own = {
            "": _CLASS,
            ".type": self.catalog.type.lower(),
            ".cache-enabled": "false",  # a table is read as it is now
            **{f".hadoop.{name}": value for name, value in self.settings.items()},
        }
        if self.is_a_folder:
            return {**own, ".warehouse": self.folder}
        warehouse = self.catalog.warehouse
        if self.catalog.type is CatalogType.JDBC:
            warehouse = warehouse or f"{self.folder}/tables"
        given = {**_FILES, "uri": self.catalog.uri or "", **self._login()}
        given |= {} if warehouse is None else {"warehouse": warehouse}
        every = {**self.catalog.properties, **given}
        return {**{f".{name}": value for name, value in every.items()}, **own}

    def _login(self) -> Mapping[str, str]:
        login = self.catalog.login
        if login is None:
            return {}
        assert login.folder is not None
        found = LoginFolder(Path(login.folder)).read()
        if self.catalog.type is CatalogType.JDBC:
            return {"jdbc.user": found.username, "jdbc.password": found.password}
        return {"credential": f"{found.username}:{found.password}"}


def lake_place(
    folder: str, settings: Mapping[str, str], catalog: LakeCatalog, queue: str | None
) -> LakePlace:
    """Return the place of a queue's lake. `queue`: its name as `NAMESPACE.NAME`, None of one in a
    directory. Raises: InvalidSettings where no namespace is known."""
    if catalog.type is CatalogType.HADOOP:
        return LakePlace(folder, settings)
    own = None if queue is None else queue.replace(".", "_")
    if (namespace := catalog.namespace or own) is None:
        raise InvalidSettings(
            "POSTROAD_PIPELINE_CATALOG: a queue in a directory has no name for the catalog: give"
            " namespace"
        )
    return LakePlace(folder, settings, catalog, namespace)
