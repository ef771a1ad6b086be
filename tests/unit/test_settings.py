import pytest

from postroad.errors import InvalidSettings
from postroad.settings import from_environment


def test_settings_come_from_the_variables_that_name_them() -> None:
    settings = from_environment(
        {
            "POSTROAD_CASSANDRA_CONTACT_POINTS": "a.example, b.example",
            "POSTROAD_CASSANDRA_PORT": "9043",
            "POSTROAD_S3_BUCKET": "",
            "POSTROAD_LOG_LEVEL": "DEBUG",
            "POSTROAD_UNKNOWN": "somebody else's",
        }
    )

    assert settings.cassandra.contact_points == ("a.example", "b.example")
    assert settings.cassandra.port == 9043
    assert settings.s3.bucket is None
    assert settings.log_level == "DEBUG"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POSTROAD_CASSANDRA_PORT", "many"),
        ("POSTROAD_CASSANDRA_KEYSPACE", 'x"; DROP KEYSPACE y'),
        ("POSTROAD_LOG_LEVEL", "loud"),
    ],
)
def test_a_bad_value_is_refused_by_its_variable_without_being_shown(name: str, value: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        from_environment({name: value})

    assert name in str(caught.value)
    assert value not in str(caught.value)


def test_secrets_show_in_no_representation() -> None:
    settings = from_environment(
        {
            "POSTROAD_RABBITMQ_URI": "amqp://user:hunter2@host",
            "POSTROAD_CASSANDRA_PASSWORD": "hunter2",
            "POSTROAD_S3_SECRET_KEY": "hunter2",
        }
    )

    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump()}"
