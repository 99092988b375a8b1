"""A plain HTTP server for the files of a folder, which clients can also put. Prints its port, and ends with its input."""
import http.server
import os
import sys
import threading


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        length = int(self.headers["Content-Length"])
        with open(self.translate_path(self.path), "wb") as file:
            while length > 0:
                part = self.rfile.read(min(length, 65536))
                if not part:
                    return
                file.write(part)
                length -= len(part)
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


os.chdir(sys.argv[1])
server = http.server.ThreadingHTTPServer(("", 0), Handler)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
