"""What is wrong with a built site: links and anchors that lead nowhere, pictures missing or without
words, anything fetched from another host.

python tools/offline/check.py _site_offline/html (build.py does it by itself).
"""

import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    "Anchors, links, pictures and loaded files of one page"

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.pictures, self.loads = {""}, [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        self.ids |= {a[k] for k in ("id", "name") if a.get(k)}
        if tag == "a" and "href" in a:
            self.links.append(a["href"])
        if tag == "img":
            self.pictures.append((a.get("src", ""), (a.get("alt") or "").strip()))
        self.loads += [a[k] for k in ("src", "data", "poster") if a.get(k)]
        if tag == "link" and a.get("href"):
            (
                self.loads if re.search("style|icon|pre|manifest", a.get("rel", "")) else self.links
            ).append(a["href"])

    handle_startendtag = handle_starttag


def resolve(page, url):
    "(file a relative link of `page` means, anchor); None for another host, mail or data"
    u = urlsplit(url)
    if u.scheme or u.netloc:
        return None
    path = (
        posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(u.path)))
        if u.path
        else page
    )
    return path, unquote(u.fragment)


def broken(site):
    "One line per fault of the site in this folder"
    site, out = Path(site), []
    pages = {p.relative_to(site).as_posix(): Page(p) for p in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site} holds no page"]
    for name, page in pages.items():
        for url in page.links:
            if (to := resolve(name, url)) is None:
                continue
            if not (site / to[0]).is_file():
                out.append(f"{name}: link to {url}, and there is no such file")
            elif to[0] in pages and to[1] not in pages[to[0]].ids:
                out.append(f"{name}: link to {url}, and {to[0]} has no such anchor")
        for url in page.loads:
            to = resolve(name, url)
            if to is None and not url.startswith("data:"):
                out.append(f"{name}: loads {url} from another host")
            elif to and not (site / to[0]).is_file():
                out.append(f"{name}: loads {url}, and there is no such file")
        out += [
            f"{name}: picture {src} has no words (alt)"
            for src, alt in page.pictures
            if not alt or alt.endswith((".png", ".svg"))
        ]
    for css in site.rglob("*.css"):
        elsewhere = re.findall(
            r"""(?:url\(|@import )\s*['"]?((?:https?:)?//[^'")\s]+)""",
            css.read_text(encoding="utf-8"),
        )
        out += [f"{css.relative_to(site).as_posix()}: loads {url}" for url in elsewhere]
    return out


def main(site):
    if faults := broken(site):
        sys.exit("\n".join([*faults, f"{len(faults)} faults in {site}"]))
    print(f"{site}: every link, anchor and picture is there, nothing comes from another host")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["_site_offline/html"])
