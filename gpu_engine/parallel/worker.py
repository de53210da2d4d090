"""A rank that is not the first: a process of its own, which does what rank 0 says.

Here nothing large is imported before the process is bound to its parent's life.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.gpu_engine.lifeline import die_with

if TYPE_CHECKING:
    from headrace.gpu_engine.parallel.messages import FromWorker

PROCESS_NAME: Final = b"headrace-rank"

Pipe: TypeAlias = "Connection[Any, Any]"


def main(fd: int, parent_pid: int) -> None:
    """`fd`: of the connection to rank 0, whose process is `parent_pid`. Ctrl-C reaches the whole process
    group and is ignored: rank 0 decides when to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent_pid, PROCESS_NAME)
    sys.exit(serve(Connection(fd)))


def serve(connection: Pipe) -> int:
    """Serves rank 0 until it closes the connection. Returns the exit code; a failure was told then."""
    try:
        first = connection.recv_bytes()
    except (EOFError, ConnectionError):
        return 0
    # Here, since it takes seconds; see above.
    from headrace.gpu_engine.models.errors import ModelError, one_line
    from headrace.gpu_engine.parallel.group import PeersLost
    from headrace.gpu_engine.parallel.messages import Failed
    from headrace.gpu_engine.parallel.rank import Rank

    try:
        rank = Rank.join(connection, first)
        while True:
            rank.obey()
    except (EOFError, PeersLost, ConnectionError):
        return 0  # somebody else is to blame
    except ModelError as error:
        return _tell(connection, Failed(str(error), by_user=True))
    except Exception as error:
        traceback.print_exc()
        return _tell(connection, Failed(f"{type(error).__name__}: {one_line(error)}"))


def _tell(connection: Pipe, failure: FromWorker) -> int:
    from headrace.gpu_engine.parallel.messages import encode

    try:
        connection.send_bytes(encode(failure))
    except ConnectionError:
        return os.EX_UNAVAILABLE
    return os.EX_SOFTWARE


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
