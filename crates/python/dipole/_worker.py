"""A rank of `dipole.cluster`: calls the functions that the cluster sends."""

import os
import pickle
import sys
import threading
import traceback

from . import _functions, bsp
from ._address import Address
from ._endpoint import Endpoint


def _end_with_stdin() -> None:
    # Not through sys.stdin, whose lock this thread would hold when the interpreter ends.
    while os.read(0, 4096):
        pass
    # The launcher ends the other ranks because of the status.
    os._exit(1)


def main() -> None:
    cluster = Address(int(sys.argv[1]), int(sys.argv[2]))
    program = bsp.begin()
    assert program is not None
    if program.rank == 0:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    endpoint = Endpoint()
    endpoint.target(cluster)
    endpoint.send(("ready", 0, program.rank, endpoint.address))
    while True:
        kind, number, call = endpoint.recv()
        if kind == "end":
            program.end()
            return
        answer: tuple[str, object]
        try:
            function, arguments, options = pickle.loads(call)
            answer = "result", _functions.dumps(function(program, *arguments, **options))
        except BaseException as raised:
            try:
                pickled = _functions.dumps(raised)
            except Exception:
                pickled = b""
            answer = "raised", (pickled, traceback.format_exc())
        endpoint.send((answer[0], number, program.rank, answer[1]))
        if answer[0] == "raised":
            endpoint.drain()
            program.abort()
            # The cluster starts new ranks for the next call.
            endpoint.recv()


if __name__ == "__main__":
    main()
