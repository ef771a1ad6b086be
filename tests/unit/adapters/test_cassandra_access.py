"""How the driver is set up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT
from cassandra.policies import TokenAwarePolicy
from cassandra.query import dict_factory

from postroad.adapters.cassandra.clocks import HostClocks, RightClocksFirst, Timestamps
from postroad.adapters.cassandra.connection import Access, cluster_of
from postroad.errors import TlsRefused
from postroad.tls import ClientTls, Encryption
from support.certificates import Certificates

SECOND = timedelta(seconds=1)
ACCESS = Access(("127.0.0.1", "127.0.0.2"), 9043, "dc1", "mail")
CLUSTERS: list[Any] = []


def cluster(access: Access = ACCESS, clocks: HostClocks | None = None) -> Any:
    CLUSTERS.append(cluster_of(access, 5 * SECOND, 3 * SECOND, clocks))
    return CLUSTERS[-1]


@pytest.fixture(autouse=True)
def shut_down() -> Iterator[None]:
    yield
    while CLUSTERS:
        CLUSTERS.pop().shutdown()


def test_a_host_that_came_back_is_used_again_within_seconds_however_long_it_was_away() -> None:
    policy = cluster().reconnection_policy

    waits = list(islice(policy.new_schedule(), 100))
    assert len(waits) == 100, "it never gives up"
    assert max(waits) < 8
    assert (policy.base_delay, policy.max_delay) == (0.5, 5)


def test_a_hanging_host_is_noticed_by_heartbeats_and_a_slow_read_sent_to_others() -> None:
    made = cluster()

    assert (made.idle_heartbeat_interval, made.idle_heartbeat_timeout) == (4, 4)
    assert (made.connect_timeout, made.control_connection_timeout) == (3, 3)
    profile = made.profile_manager.profiles[EXEC_PROFILE_DEFAULT]
    assert profile.request_timeout == 5
    assert profile.row_factory is dict_factory
    speculation = profile.speculative_execution_policy
    assert (speculation.delay, speculation.max_attempts) == (1, 2)


def test_the_cluster_is_found_by_its_contact_points_and_its_data_center() -> None:
    made = cluster()

    assert made.contact_points == ["127.0.0.1", "127.0.0.2"]
    assert (made.port, made.protocol_version) == (9043, 4)
    assert made.application_name == "postroad"
    assert not made.monitor_reporting_enabled
    policy = made.profile_manager.profiles[EXEC_PROFILE_DEFAULT].load_balancing_policy
    assert type(policy) is TokenAwarePolicy
    assert policy._child_policy.local_dc == "dc1"


def test_clocks_stamp_writes_and_choose_hosts() -> None:
    clocks = HostClocks(Timestamps(), "dc1")

    made = cluster(clocks=clocks)

    assert made.timestamp_generator is clocks.timestamps
    policy = made.profile_manager.profiles[EXEC_PROFILE_DEFAULT].load_balancing_policy
    assert type(policy) is RightClocksFirst
    assert cluster().timestamp_generator is not clocks.timestamps


def test_a_user_is_named_where_there_is_one() -> None:
    assert cluster().auth_provider is None
    without = cluster(Access(("127.0.0.1",), 9042, "dc1", "mail", "user")).auth_provider
    assert isinstance(without, PlainTextAuthProvider)
    assert (without.username, without.password) == ("user", "")
    named = cluster(Access(("127.0.0.1",), 9042, "dc1", "mail", "user", "pass")).auth_provider
    assert (named.username, named.password) == ("user", "pass")


@pytest.mark.parametrize(
    ("encryption", "checks_name"), [(Encryption.VERIFY_CA, False), (Encryption.VERIFY_FULL, True)]
)
def test_certificates_are_checked_as_far_as_the_encryption_says(
    tmp_path: Path, encryption: Encryption, checks_name: bool
) -> None:
    tls = ClientTls(Certificates.make(tmp_path).authority)
    access = Access(
        ("127.0.0.1",), 9042, "dc1", "mail", encryption=encryption, tls=tls, tls_name="one.example"
    )

    made = cluster(access)

    assert made.ssl_context.check_hostname is checks_name
    assert made.ssl_options == {"server_hostname": "one.example"}
    assert cluster().ssl_context is None
    assert not cluster().ssl_options


def test_authorities_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    tls = ClientTls(tmp_path / "missing.crt")

    with pytest.raises(TlsRefused):
        cluster(Access(("a",), 9042, "dc1", "mail", encryption=Encryption.VERIFY_FULL, tls=tls))
