"""A server in the place of the Hugging Face Hub that takes commits: one model repository."""

import base64
import hashlib
import json
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

from stand_in import Fatal, Reply

from gpub.core import write_atomic

REPO = "some/mirror"
COMMIT = "c" * 40


class WritableHub(Fatal):
    "Holds the files of a repository; every commit changes all of its files or none"

    def __init__(self):
        super().__init__(Answer)

    def store(self, files):
        "A commit happens"
        self.files = files

    def note(self, request):
        "A request is about to be answered"


class Answer(Reply):
    def reply(self, status, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers["Content_Type"] = "application/json"
        super().reply(status, body, **headers)

    def do_any(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self.server.note(f"{self.command} {self.path}")
            self.answer(data)
        except ConnectionError:
            raise
        except OSError as error:  # of its own disk
            self.reply(500, {"error": str(error)})

    def answer(self, data):
        path = unquote(urlsplit(self.path).path)
        if path == "/api/validate-yaml":  # of its card
            return self.reply(200, dict(errors=[], warnings=[]))
        if path == "/api/repos/create":
            return self.reply(200, dict(url=f"{self.server.url}/{REPO}", name=REPO))
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
        if not self.change(lambda: self.write(data)):
            return
        about = dict(commitUrl=f"{self.server.url}/{REPO}/commit/{COMMIT}", commitOid=COMMIT)
        self.reply(200, about | dict(hookOutput="", pullRequestUrl=None))

    def write(self, data):
        files = dict(self.server.files)
        for line in data.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "deletedFile":
                files.pop(value["path"])
        self.server.store(files)

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


class HubOnDisk(WritableHub):
    """Keeps its repository in a folder, in one file that a commit replaces, and notes each request
    there: a write that fails in that folder, or ends the process, does so at a request"""

    def __init__(self, folder):
        self.repository = folder / "repository.json"
        self.requests = folder / ".requests"
        super().__init__()
        if self.repository.is_file():
            stored = json.loads(self.repository.read_text())
            self.files = {name: base64.b64decode(data) for name, data in stored.items()}

    def store(self, files):
        stored = {name: base64.b64encode(files[name]).decode() for name in sorted(files)}
        write_atomic(self.repository, json.dumps(stored))
        super().store(files)

    def note(self, request):
        with open(self.requests, "a") as file:
            file.write(request + "\n")


@contextmanager
def in_place_of_the_hub(folder):
    "While this is open, whatever this process sends to the Hub goes into the folder"
    from huggingface_hub import constants

    before = constants.ENDPOINT, constants.HF_HUB_OFFLINE
    hub = HubOnDisk(folder)
    constants.ENDPOINT, constants.HF_HUB_OFFLINE = hub.url, False
    try:
        yield hub
    finally:
        constants.ENDPOINT, constants.HF_HUB_OFFLINE = before
        hub.shutdown()
        hub.server_close()
