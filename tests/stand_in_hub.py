"""A server in the place of the Hugging Face Hub: one dataset, its commits and its branches."""

import hashlib
import io
import json
import threading
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from stand_in import Reply, StandIn

REPO = "some/set"
CARD = b"---\nconfigs:\n- config_name: default\n  data_files: data/*\n---\n"


def dataset_files(tables):
    "What a repository holds: a card, and a Parquet file for each list of texts"
    files = {"README.md": CARD}
    for i, texts in enumerate(tables):
        buffer = io.BytesIO()
        pq.write_table(pa.table({"text": texts}), buffer)
        files[f"data/train-{i}.parquet"] = buffer.getvalue()
    return files


class Hub(StandIn):
    "Answers as the Hub does, notes which files of which commit were read, and can stop at one"

    def __init__(self, commits):
        self.commits = commits  # commit -> {path: bytes}
        self.branches = {"main": next(iter(commits))}
        self.read = []  # (commit, path) of every file of data that was sent
        self.held = None  # path of a file that is asked for and not sent
        self.reached, self.released = threading.Event(), threading.Event()
        super().__init__(Answer)

    def commit(self, name):
        "The commit that a branch means now, itself for a commit, None for neither"
        name = self.branches.get(name, name)
        return name if name in self.commits else None


class Answer(Reply):
    def lacking(self, what):
        self.reply(404, b"{}", X_Error_Code=f"{what}NotFound")

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        api, files = f"/api/datasets/{REPO}", f"/datasets/{REPO}/resolve/"
        if path == api or path.startswith(f"{api}/"):
            kind, _, rest = path[len(api) + 1 :].partition("/")
            self.about(kind or "revision", *rest.partition("/")[::2])
        elif path.startswith(files):
            self.file(*path[len(files) :].partition("/")[::2])
        else:
            self.lacking("Repo")

    do_HEAD = do_GET

    def about(self, kind, name, folder):
        "The commit of a branch, or the files in a folder"
        commit = self.server.commit(name or "main")
        if not commit:
            return self.lacking("Revision")
        files = self.server.commits[commit]
        if kind == "revision":
            listed = [dict(rfilename=f) for f in files]
            found = dict(id=REPO, sha=commit, siblings=listed, private=False, tags=[])
        else:
            inside = [f for f in files if f.rpartition("/")[0] == folder]
            found = [
                dict(
                    type="file", path=f, size=len(files[f]), oid=hashlib.sha1(files[f]).hexdigest()
                )
                for f in inside
            ]
            if not folder:
                found.append(dict(type="directory", path="data", oid="0"))
        self.reply(200, json.dumps(found).encode(), Content_Type="application/json")

    def file(self, name, path):
        "A file of a commit, or the range of it that is asked for"
        commit = self.server.commit(name)
        body = self.server.commits.get(commit, {}).get(path)
        if body is None:
            return self.lacking("Entry" if commit else "Revision")
        if path == self.server.held:
            self.server.reached.set()
            self.server.released.wait(60)
        if path.startswith("data/") and self.command == "GET":
            self.server.read.append((commit, path))
        about = dict(X_Repo_Commit=commit, ETag=f'"{hashlib.sha1(body).hexdigest()}"')
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = body[int(first) : int(last) + 1]
            where = f"bytes {first}-{int(first) + len(part) - 1}/{len(body)}"
            return self.reply(206, part, Content_Range=where, **about)
        self.reply(200, body, **about)
