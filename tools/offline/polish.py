"""What a page of the offline site lacks when Sphinx and its theme are done: names for a screen
reader, a way in for the keyboard, columns in step."""

import html
import re
from collections import Counter

GAP = re.compile(r"(?<=\S) {2,}(?=(\S+))")


def columns(m):
    """A printed block; where words of two lines begin or end in line after a gap, it keeps its
    columns and only the sentences between them break"""
    raw, lines = m[2].split("\n"), html.unescape(m[2]).split("\n")
    edges = Counter(
        edge
        for l in lines
        for g in GAP.finditer(l)
        for edge in (("from", g.start(1)), ("to", g.end(1)))
    )
    if max(edges.values(), default=1) == 1:
        return m[0]
    rows = (
        r if GAP.search(l) or not l.strip() else f"<span>{r}</span>" for r, l in zip(raw, lines)
    )
    return f'{m[1]} class="columns">' + "\n".join(rows)


def text_of(made):
    return html.unescape(re.sub("<[^>]+>", "", made))


def roomy(m):
    """A cell of a table; a long one gets a width below which it is not squeezed to a word a line"""
    return f'<td class="{m[1]} long">{m[2]}' if len(text_of(m[2])) > 30 else m[0]


PRINTED = re.compile(
    r'(highlight-(?:myst-ansi|text|default) notranslate"><div class="highlight"><pre tabindex="0")>'
    r"(?:<span></span>)?([^<]*)(?=</pre>)"
)
FIXES = {  # what the theme forgets
    # its text says what the fold holds
    '<summary aria-label="Toggle hidden content">': "<summary>",
    'class="caption" role="heading"': 'class="caption" role="heading" aria-level="2"',
    # the keyboard's way into what scrolls
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<div class="highlight"><pre>': '<div class="highlight"><pre tabindex="0">',
    '<aside class="sidebar-drawer"': '<aside aria-label="All pages" class="sidebar-drawer"',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
    '<div id="search-results"></div>': '<h1>Search</h1>\n<div id="search-results"></div>',
}


def polish(page):
    """A page with what the theme forgets, without corners of tables that claim to be headings;
    columns kept, long cells of tables with room"""
    page = re.sub("|".join(map(re.escape, FIXES)), lambda m: FIXES[m[0]], page)
    page = re.sub(r'<th( class="[^"]*")>\s*(?:<p>\s*</p>)?\s*</th>', r"<td\1></td>", page)
    page = re.sub(r'<td class="([^"]*)">(.*?</td>)', roomy, page, flags=re.S)
    return PRINTED.sub(columns, page)
