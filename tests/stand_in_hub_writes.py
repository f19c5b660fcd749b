"""A server in the place of the Hugging Face Hub that takes commits: one model repository."""

import base64
import hashlib
import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

REPO = "some/mirror"
COMMIT = "c" * 40


class WritableHub(ThreadingHTTPServer):
    """Holds the files of a repository; every commit changes all of its files or none. `kill` sends
    SIGKILL to the client at its nth commit"""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {}
        self.commits = 0  # since `kill`
        self.fatal = None  # (number of the commit, process, whether it still happens)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def kill(self, at, process, happens):
        self.commits, self.fatal = 0, (at, process, happens)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        "A client that was killed is no error of the server's"
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers["Content_Type"] = "application/json"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_any(self):
        path = unquote(urlsplit(self.path).path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        api = f"/api/models/{REPO}"
        files = f"/{REPO}/resolve/"
        if path.startswith(files):
            return self.file(path.removeprefix(files).partition("/")[2])
        if not path.startswith(api):
            return self.reply(404, {"error": f"nothing at {path}"}, X_Error_Code="RepoNotFound")
        verb, _, rest = path.removeprefix(api).strip("/").partition("/")
        if verb in ("", "revision"):
            return self.reply(200, dict(id=REPO, sha=COMMIT, siblings=[]))
        if verb == "preupload":
            asked = json.loads(data)["files"]
            rows = [dict(path=f["path"], uploadMode="regular", shouldIgnore=False) for f in asked]
            return self.reply(200, dict(files=rows))
        if verb == "commit":
            return self.commit(data)
        folder = rest.partition("/")[2]
        if verb == "tree":
            return self.tree(folder)
        if verb == "paths-info":
            paths = parse_qs(data.decode())["paths"]
            return self.reply(200, [row for p in paths for row in self.rows(p)])
        self.reply(404, {"error": path})

    do_GET = do_HEAD = do_POST = do_any

    def row(self, name):
        data = self.server.files[name]
        return dict(type="file", path=name, size=len(data), oid=oid(data))

    def rows(self, path):
        if path in self.server.files:
            return [self.row(path)]
        if any(name.startswith(f"{path}/") for name in self.server.files):
            return [dict(type="directory", path=path, oid=COMMIT)]
        return []

    def tree(self, folder):
        prefix = f"{folder}/" if folder else ""
        inside = [name for name in self.server.files if name.startswith(prefix)]
        if not inside:
            return self.reply(404, {"error": "no entry"}, X_Error_Code="EntryNotFound")
        names = sorted({prefix + name[len(prefix) :].split("/")[0] for name in inside})
        self.reply(200, [row for name in names for row in self.rows(name)])

    def commit(self, data):
        self.server.commits += 1
        at, process, happens = self.server.fatal or (None, None, None)
        fatal = self.server.commits == at
        for line in data.decode().splitlines() if happens or not fatal else ():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "deletedFile":
                self.server.files.pop(value["path"])
        if fatal:
            os.kill(process, signal.SIGKILL)
            self.close_connection = True
            return
        about = dict(commitUrl=f"{self.server.url}/{REPO}/commit/{COMMIT}", commitOid=COMMIT)
        self.reply(200, about | dict(hookOutput="", pullRequestUrl=None))

    def file(self, name):
        data = self.server.files.get(name)
        if data is None:
            return self.reply(404, {"error": "no entry"}, X_Error_Code="EntryNotFound")
        first, last = 0, len(data) - 1
        if self.headers.get("Range"):
            a, _, b = self.headers["Range"].removeprefix("bytes=").partition("-")
            first, last = int(a), min(int(b or last), last)
        headers = dict(ETag=f'"{oid(data)}"', X_Repo_Commit=COMMIT)
        if self.headers.get("Range"):
            headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
        status = 206 if self.headers.get("Range") else 200
        self.reply(status, data[first : last + 1], **headers)


def oid(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
