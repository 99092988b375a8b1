#!/usr/bin/env python3
"""A viewer that uses plain TCP, not Dipole: viewer.py FOLDER [ADDRESS]

Prints its port. Reads plates from one connection until it ends, prints each plate and draws it into FOLDER.
"""
import array
import pathlib
import socket
import sys

folder = pathlib.Path(sys.argv[1])
listener = socket.create_server((sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
plates = connection.makefile("rb")
step = 0
while head := plates.readline():
    step += 1
    rows, columns = map(int, head.split())
    heat = array.array("d", plates.read(rows * columns * 8))
    total = 0.0
    for one in heat:
        total += one
    most = max(heat)
    print(f"step {step}: {rows} x {columns}, sum {total:.17g}, most {most:.17g}", flush=True)
    grey = bytes(min(255, int(one * 256 / 1024)) for one in heat)
    (folder / f"step{step}.pgm").write_bytes(b"P5 %d %d 255\n" % (columns, rows) + grey)
