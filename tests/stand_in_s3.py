"""A server in the place of S3: buckets of whole files, which can kill its client at a request."""

import hashlib
import os
import re
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CHANGES = "PUT", "POST", "DELETE"
SMALLEST = "<{0} xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{1}</{0}>"


class S3(ThreadingHTTPServer):
    "Holds files by bucket/key; `kill` sends SIGKILL to the client at its nth change"

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {}
        self.changes = 0  # requests that changed something, since `kill`
        self.fatal = None  # (number of the change, process, whether it still happens)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def kill(self, at, process, happens):
        self.changes, self.fatal = 0, (at, process, happens)

    @property
    def environment(self):
        "What a client has to have in its environment to come here"
        return dict(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{self.server_port}",
            AWS_ACCESS_KEY_ID="somebody",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_DEFAULT_REGION="us-east-1",
        )

    def handle_error(self, request, client_address):
        "A client that was killed is no error of the server's"
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Answer(BaseHTTPRequestHandler):
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

    def handle_any(self):
        url = urlsplit(self.path)
        key = unquote(url.path).strip("/")
        asked = parse_qs(url.query, keep_blank_values=True)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command not in CHANGES:
            return self.tell(key, asked)
        self.server.changes += 1
        at, process, happens = self.server.fatal or (None, None, None)
        fatal = self.server.changes == at
        if happens or not fatal:
            self.change(key, asked, data)
        if fatal:
            os.kill(process, signal.SIGKILL)
            self.close_connection = True
            return
        body = SMALLEST.format("DeleteResult", "") if "delete" in asked else ""
        self.reply(200 if self.command != "DELETE" else 204, body.encode(), ETag='"x"')

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def change(self, key, asked, data):
        files = self.server.files
        if self.command == "PUT":
            if "aws-chunked" in self.headers.get("Content-Encoding", ""):
                raise NotImplementedError("a body in chunks")
            files[key] = data
        elif self.command == "DELETE":
            files.pop(key, None)
        else:
            assert "delete" in asked, asked
            for name in re.findall("<Key>(.*?)</Key>", data.decode()):
                files.pop(f"{key}/{name}", None)

    def tell(self, key, asked):
        files = self.server.files
        if "list-type" in asked:
            return self.reply(200, self.listing(key, asked).encode())
        if key not in files:
            body = SMALLEST.format("Error", "<Code>NoSuchKey</Code><Message>none</Message>")
            return self.reply(404, body.replace(" xmlns", " x").encode())
        data = files[key]
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span is None:
            return self.reply(200, data, ETag=tag)
        first = int(span[1])
        last = min(int(span[2] or len(data)), len(data) - 1)
        where = f"bytes {first}-{last}/{len(data)}"
        self.reply(206, data[first : last + 1], ETag=tag, Content_Range=where)

    def listing(self, bucket, asked):
        prefix = asked.get("prefix", [""])[0]
        delimiter = asked.get("delimiter", [""])[0]
        files, folders = [], set()
        for name, data in sorted(self.server.files.items()):
            if not name.startswith(f"{bucket}/{prefix}"):
                continue
            rest = name[len(f"{bucket}/{prefix}") :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            files.append(
                f"<Contents><Key>{escape(name[len(bucket) + 1 :])}</Key><Size>{len(data)}</Size>"
                '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"x"</ETag></Contents>'
            )
        inner = [f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders]
        count = f"<KeyCount>{len(files) + len(inner)}</KeyCount><IsTruncated>false</IsTruncated>"
        return SMALLEST.format("ListBucketResult", count + "".join(files + inner))
