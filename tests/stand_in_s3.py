"""A server in the place of S3: buckets of whole files, which can kill its client at a request."""

import hashlib
import re
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from stand_in import Fatal, Reply

CHANGES = "PUT", "POST", "DELETE"
SMALLEST = "<{0} xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{1}</{0}>"


class S3(Fatal):
    "Holds files by bucket/key"

    def __init__(self):
        super().__init__(Answer)

    @property
    def environment(self):
        "What a client has to have in its environment to come here"
        return dict(
            AWS_ENDPOINT_URL=self.url,
            AWS_ACCESS_KEY_ID="somebody",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_DEFAULT_REGION="us-east-1",
        )


class Answer(Reply):
    def handle_any(self):
        url = urlsplit(self.path)
        key = unquote(url.path).strip("/")
        asked = parse_qs(url.query, keep_blank_values=True)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command not in CHANGES:
            return self.tell(key, asked)
        if not self.change(lambda: self.write(key, asked, data)):
            return
        body = SMALLEST.format("DeleteResult", "") if "delete" in asked else ""
        self.reply(200 if self.command != "DELETE" else 204, body.encode(), ETag='"x"')

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def write(self, key, asked, data):
        files = self.server.files
        if self.command == "PUT":
            if "aws-chunked" in self.headers.get("Content-Encoding", ""):
                raise AssertionError("a body in chunks is not understood here")
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
