"""What the servers that stand in the place of the Hub and of S3 share: quiet, on a free port, and
able to kill a client at a request."""

import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StandIn(ThreadingHTTPServer):
    "Answers on a free port of this machine, in a thread of its own"

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        "A client that was killed is no error of the server's"
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Fatal(StandIn):
    "`kill` sends SIGKILL to the client at its nth request that changes something"

    def __init__(self, answer):
        self.files = {}
        self.changes = 0  # since `kill`
        self.fatal = None, None, None  # number of the change, process, whether it still happens
        super().__init__(answer)

    def kill(self, at, process, happens):
        self.changes, self.fatal = 0, (at, process, happens)


class Reply(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def change(self, make):
        "Make a change, and kill the client if it is the fatal one; whether there is one to answer"
        server = self.server
        server.changes += 1
        at, process, happens = server.fatal
        fatal = server.changes == at
        if happens or not fatal:
            make()
        if fatal:
            os.kill(process, signal.SIGKILL)
            self.close_connection = True
        return not fatal
