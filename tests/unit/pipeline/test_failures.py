"""What Spark raises where a job runs."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError

from postroad.errors import JobFailed
from postroad.pipeline.spark.session import translated


@pytest.mark.parametrize(
    "error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "no")]
)
def test_a_java_that_ends_lets_the_run_be_repeated(error: Exception) -> None:
    with pytest.raises(JobFailed, match="Java ended") as raised, translated():
        raise error

    assert raised.value.transient
