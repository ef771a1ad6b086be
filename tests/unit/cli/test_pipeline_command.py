"""`postroad pipeline`: what is missing is one line that names what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroad.adapters.disk.files import DiskFiles
from postroad.cli import main
from postroad.cli.pipeline import results, spark
from postroad.cli.pipeline.archiving import _place
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.opening import describe
from postroad.pipeline.java import jars

URL = "distributed://mail.outgoing"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with Java and all jars; returns the folder of the jars."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").touch()
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("POSTROAD_PIPELINE_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("POSTROAD_PIPELINE_ADDRESSES", "none")
    monkeypatch.setattr(jars, "pinned", lambda: ())
    return tmp_path / "jars"


def archive(*arguments: str, url: str = URL) -> Result:
    return CliRunner().invoke(main, ["pipeline", "archive", "--queue", url, *arguments])


def assert_refused(result: Result, text: str, code: int = 1) -> None:
    assert result.exit_code == code, result.output
    (line,) = result.stderr.splitlines()
    assert text in line


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "find_spec", lambda _: None)

    assert_refused(archive(), "pip install 'postroad[pipeline]'")


def test_without_java_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    assert_refused(archive(), "openjdk-17-jre-headless")


def test_without_the_jars_the_command_that_fetches_them_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jars, "pinned", lambda: (jars.Jar("org.example", "one", "1", "0"),))

    assert_refused(archive(), "one-1.jar (fetch them once with `postroad pipeline fetch`)")


def test_hashed_addresses_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROAD_PIPELINE_ADDRESSES")
    assert_refused(archive(), "POSTROAD_PIPELINE_ADDRESS_KEY")

    monkeypatch.setenv("POSTROAD_PIPELINE_ADDRESS_KEY", "too short")
    result = archive()
    assert_refused(result, "POSTROAD_PIPELINE_ADDRESS_KEY")
    assert "too short" not in result.output


def test_the_lake_of_a_queue_in_a_directory_is_named(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"

    assert_refused(archive(url=url), "name its directory with --lake")
    assert_refused(archive("--lake", str(tmp_path)), "--lake is for queues in a directory")
    since = ("--from", "2026-01-01T00:00:00Z")
    assert_refused(archive("--lake", str(tmp_path), *since, url=url), "choose slices")
    assert_refused(archive("--lake", str(tmp_path), url=url), "there is no store in")


def a_store(root: Path) -> str:
    """Make a store, and return its URL."""
    root.mkdir()
    describe(DiskFiles(), root, StoreOptions(), create=True)
    return f"embedded://{root}"


def test_a_lake_is_that_of_one_queue(tmp_path: Path) -> None:
    lake, urls = tmp_path / "lake", [a_store(tmp_path / each) for each in ("one", "two")]
    lake.mkdir()
    (lake / "queue").write_text(str(tmp_path / "one"))

    jobs = (
        "pipeline archive",
        "pipeline traffic",
        "pipeline forget a@b.example",
        "trace a@b.example",
    )
    for job in jobs:
        arguments = [*job.split(), "--queue", urls[1], "--lake", str(lake)]
        assert_refused(CliRunner().invoke(main, arguments), f"of the queue in {tmp_path / 'one'}")
    assert not (tmp_path / "two/archive").exists(), "what no run will read is not kept"


def test_without_spark_no_archive_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = a_store(tmp_path / "store")
    monkeypatch.setattr(spark, "find_spec", lambda _: None)

    assert_refused(archive("--lake", str(tmp_path / "lake"), url=url), "postroad[pipeline]")

    assert not (tmp_path / "store/archive").exists(), "no run would read it"


def test_a_lake_inside_its_store_is_refused(tmp_path: Path) -> None:
    """Its lock would be that of the store."""
    url = a_store(tmp_path / "store")
    (tmp_path / "link").symlink_to(tmp_path / "store/archive")

    for place in ("store", "store/archive", "store/../store/x", "link"):
        assert_refused(archive("--lake", str(tmp_path / place), url=url), "lies in the store")
    assert not (tmp_path / "store/lock").exists()


def test_what_is_no_moment_is_refused_with_examples() -> None:
    result = archive("--from", "soon")

    assert result.exit_code == 2
    assert "write it as 2026-11-26" in result.stderr


def test_while_cassandra_is_away_the_command_is_to_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSTROAD_CASSANDRA_CONTACT_POINTS", "127.0.0.1")
    monkeypatch.setenv("POSTROAD_CASSANDRA_PORT", "1")

    assert_refused(archive(), "Cassandra", code=75)


WITH_TABLES = [
    ("ages --spark", "leave --spark away"),
    ("audit --deep", "use `postroad verify DIR`"),
    *((f"{each} --spark --all", "leave --spark away") for each in ("hold", "flush", "expire")),
    ("republish --spark --older-than 1h", "leave --spark away"),
]
OVER_A_LAKE = [
    *("pipeline traffic", "pipeline destinations", "trace a@b.example", "pipeline advise"),
    *("pipeline export somewhere", "pipeline forget a@b.example"),
]


@pytest.mark.parametrize(("job", "text"), WITH_TABLES)
def test_a_job_over_tables_names_what_serves_a_queue_in_a_directory(
    job: str, text: str, tmp_path: Path
) -> None:
    url = f"embedded://{tmp_path}/store"
    result = CliRunner().invoke(main, [*job.split(), "--queue", url])

    assert_refused(result, text, code=2)


@pytest.mark.parametrize("job", OVER_A_LAKE)
def test_a_job_over_a_lake_asks_for_the_directory_of_it(job: str, tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    result = CliRunner().invoke(main, [*job.split(), "--queue", url])

    assert_refused(result, "name its directory with --lake")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("hold --spark", "--all"),
        ("requeue --spark --all", "No such option '--spark'"),
        ("discard --spark --all", "No such option '--spark'"),
        ("republish --spark", "Missing option '--older-than'"),
        ("flush --spark --site mx.example.net", "--site goes without --spark"),
        ("hold --all --master local", "--master is for --spark"),
        ("ages --master local", "--master is for --spark"),
        ("audit --master local", "--master is for --deep"),
        ("audit --deep --adopt", "--adopt goes without --deep"),
        ("pipeline forget", "name an ADDRESS, or give --older-than"),
        ("pipeline forget a@b.example --older-than 400d", "name an ADDRESS, or give"),
        ("pipeline forget --older-than 99999999999d", "is no age"),
        ("pipeline forget --older-than 0d", "is no age"),
        ("pipeline traffic --by day", "'day' is not one of"),
        ("trace", "name what to search for in the lake"),
        ("trace --domain b.example", "--domain is for an attempt log"),
        ("trace a@b.example --log .", "--log and --queue"),
    ],
)
def test_what_a_job_cannot_do_is_named(arguments: str, text: str) -> None:
    result = CliRunner().invoke(main, [*arguments.split(), "--queue", URL])

    assert result.exit_code == 2
    assert text in result.stderr


def test_traffic_is_counted_by_the_hour_unless_options_name_more() -> None:
    assert results.traffic.make_context("traffic", ["--queue", URL]).params["by"] == ("hour",)
    more = ["--queue", URL, "--by", "site", "--by", "domain"]
    assert results.traffic.make_context("traffic", more).params["by"] == ("site", "domain")


def test_an_export_into_a_directory_that_exists_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["pipeline", "export", str(tmp_path), "--queue", URL])

    assert_refused(result, "name a new directory")


def test_an_export_goes_where_its_argument_says(tmp_path: Path) -> None:
    """Hadoop takes no escapes: a URI with `%20` would be a directory of that name."""
    assert _place(str(tmp_path / "a b%#ä")) == f"file:{tmp_path}/a b%#ä"
    assert _place("s3a://bucket/a%20b") == "s3a://bucket/a%20b"


@pytest.mark.parametrize("sign", "{}[]*?\\")
def test_an_export_into_what_spark_takes_as_a_pattern_is_refused(tmp_path: Path, sign: str) -> None:
    result = CliRunner().invoke(
        main, ["pipeline", "export", str(tmp_path / f"a{sign}"), "--queue", URL]
    )

    assert_refused(result, "as a pattern")


def a_report(folder: Path, url: str = URL) -> Result:
    return CliRunner().invoke(main, ["pipeline", "report", str(folder), "--queue", url])


def test_a_report_needs_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert_refused(a_report(tmp_path / "file"), "name a directory")
    assert_refused(a_report(tmp_path / "file/below"), "name a directory")


def test_without_what_draws_it_a_report_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "find_spec", lambda _: None)

    assert_refused(a_report(tmp_path), "pip install 'postroad[pipeline]'")


def test_jars_that_are_there_are_not_fetched_again(installed: Path) -> None:
    result = CliRunner().invoke(main, ["pipeline", "fetch"])

    assert (result.exit_code, result.output) == (0, f"fetched 0 jars into {installed}\n")
