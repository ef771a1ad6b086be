"""How the bench reads from a trace whether a mail was synced before its 250."""

from bench.mta_peers import _least_before_answer


def test_syncs_between_354_and_the_next_250_count() -> None:
    calls = [
        ' write(5, "250 ok\\r\\n"..., 8) = 8',
        ' sendto(5, "354 go o"..., 8) = 8',
        " fsync(7) = 0",
        " fdatasync(8) = 0",
        ' writev(5, [{iov_base="250 2.0.", iov_len=8}], 1) = 8',
        " fsync(9) = 0",
        ' write(5, "354 go o"..., 8) = 8',
        " fdatasync(8) = 0",
        ' write(5, "250 2.0."..., 8) = 8',
    ]
    assert _least_before_answer(calls) == 1.0
    assert _least_before_answer([calls[1], calls[4], *calls[6:]]) == 0.0
