"""What a person who waits for the demo reads."""

from demo.forecast import BUILDS, Bar, Forecast, Machine, forecast

EXPECTED = Forecast({"servers": 60.0, "image": 30.0, "mail": 10.0}, ["x"])


def machine(*missing: str, cores: int = 2, load: float = 0.0) -> Machine:
    return Machine(cores, load, missing, servers_run=not missing)


def test_more_cores_build_sooner_and_other_work_makes_it_later() -> None:
    alone = forecast(machine("kube")).seconds

    assert forecast(machine("kube", cores=8)).seconds < alone
    assert forecast(machine("kube", load=8.0)).seconds > alone
    assert "other work shares the 2 cores" in str(forecast(machine("kube", load=8.0)))


def test_what_is_missing_makes_it_longer_and_is_named() -> None:
    ready = forecast(machine())

    for name in (*BUILDS, "packages", "base image", "image"):
        more = forecast(machine(name))
        assert more.seconds > ready.seconds
        assert "nothing is missing" not in str(more)
    assert "kube" in str(forecast(machine("kube")))


def test_the_bar_goes_by_the_seconds_of_the_steps() -> None:
    bar = Bar(EXPECTED)
    bar.begin("servers", 0.0)

    assert bar.text(0.0) == f"[{'.' * 20}]   0%, 2 min left"
    assert bar.text(30.0).endswith(" 30%, 1 min left")
    bar.begin("image", 45.0)
    assert bar.text(45.0).endswith(" 60%, 40 s left")


def test_a_step_that_takes_longer_than_expected_does_not_count_as_the_next() -> None:
    bar = Bar(EXPECTED)
    bar.begin("servers", 0.0)

    assert bar.text(9999.0).endswith(" 58%, 40 s left")
