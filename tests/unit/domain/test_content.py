"""Where a mail's header ends."""

from __future__ import annotations

import pytest
from postroad.domain.content import header_size

LONGEST = 256 * 1024


@pytest.mark.parametrize("blank", [b"\r\n\r\n", b"\n\n"])
def test_a_blank_line_within_the_first_256_kib_ends_the_header(blank: bytes) -> None:
    within = b"x" * (LONGEST - len(blank)) + blank

    assert header_size(within + b"body") == LONGEST
    assert header_size(b"x" + within + b"body") is None
