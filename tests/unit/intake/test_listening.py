"""What the sockets of an intake have from the start."""

from __future__ import annotations

import socket

from postroad.intake.server import listening_on
from postroad.smtp.server import REPLIES


def test_the_system_keeps_few_replies_for_a_client_that_is_accepted_later() -> None:
    """Between this and the first `accept`, other processes may still start."""
    (listening,) = listening_on("127.0.0.1", 0)
    with listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            # The system doubles what is asked for, for its own use (socket(7)).
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 4 * REPLIES
