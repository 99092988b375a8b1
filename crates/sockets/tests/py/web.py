"""An HTTP server of asyncio and many clients at once: every body is echoed whole."""

import asyncio
import random
import sys

role, port = sys.argv[1], int(sys.argv[2])
CLIENTS, REQUESTS = 20, 8


async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.split("Content-Length: ")[1].split("\r\n")[0])
            body = await reader.readexactly(length)
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode() + body)
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()


async def client(number):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    chance = random.Random(number)
    for _ in range(REQUESTS):
        body = chance.randbytes(chance.choice([0, 10, 20_000, 100_000, 400_000]))
        writer.write(f"POST / HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert await reader.readexactly(len(body)) == body
    writer.close()
    await writer.wait_closed()


async def main():
    if role == "server":
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    print("all", CLIENTS * REQUESTS)


asyncio.run(main())
