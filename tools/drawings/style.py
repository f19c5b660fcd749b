"The look of every drawing: one palette by day and by night, and the shapes they are made of."

from dataclasses import dataclass, field
from html import escape

FONT = 'system-ui, "Segoe UI", Helvetica, Arial, sans-serif'
MONO = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace'

# name -> (fill, line) by day, then by night. A kind of box is one of these names.
FILLS = {
    "module": (("#dce9f7", "#3a6ea5"), ("#1f3a57", "#6ea8e0")),
    "thing": (("#ffffff", "#8a8578"), ("#262a30", "#8d929b")),
    "warm": (("#fde7d3", "#b85c14"), ("#4a2d14", "#e6975a")),
    "good": (("#dff1df", "#3d7d42"), ("#1e3b23", "#7cc184")),
    "plum": (("#ece2f5", "#7a519e"), ("#382748", "#b791da")),
    "quiet": (("#eeece7", "#a8a397"), ("#24272c", "#6c727c")),
}
# name -> colour by day and by night: the ink of words, lines and heat
INKS = {
    "name": ("#1f2328", "#eceff4"),
    "note": ("#4b5058", "#bcc2cc"),
    "arrow": ("#5c6370", "#a7adb8"),
    "blue": ("#7fb2e5", "#2f6aa8"),
    "orange": ("#f2ab6b", "#9a5416"),
    "green": ("#8ccb90", "#2f7037"),
}
PAPER = (("#fcfbf9", "#d9d5cd"), ("#1b1e23", "#3a3f47"))
SIZES = {"title": 15, "name": 14, "note": 11.5, "number": 13, "code": 13}
LETTER = {"title": 0.6, "name": 0.6, "note": 0.557, "number": 0.62, "code": 0.62}  # widths in ems
HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="11" markerHeight="11" '
    'markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
)


def colours(night):
    "The rules that give every class its colours"
    fill, line = PAPER[night]
    rules = [f".paper {{ fill: {fill}; stroke: {line} }}"]
    for name, themes in FILLS.items():
        fill, line = themes[night]
        rules.append(f".{name} {{ fill: {fill}; stroke: {line} }}")
    ink = {name: both[night] for name, both in INKS.items()}
    rules += [
        f".outside {{ fill: none; stroke: {FILLS['thing'][night][1]}; stroke-dasharray: 5 4 }}",
        f".title, .name, .number, .code {{ fill: {ink['name']} }}",
        f".note {{ fill: {ink['note']} }}",
        f".arrow, .dashed {{ stroke: {ink['arrow']} }}",
        f".head {{ fill: {ink['arrow']} }}",
        *(f".heat-{name} {{ fill: {ink[name]} }}" for name in ("blue", "orange", "green")),
        f".grid {{ stroke: {PAPER[night][1]} }}",
    ]
    return rules


def stylesheet():
    "The style element's text: shapes once, colours for the light and the dark theme"
    shapes = [
        f"svg {{ color-scheme: light dark; font-family: {FONT} }}",
        f".title {{ font-size: {SIZES['title']}px; font-weight: 600 }}",
        f".name {{ font-size: {SIZES['name']}px; font-weight: 600 }}",
        f".note {{ font-size: {SIZES['note']}px }}",
        f".number {{ font-size: {SIZES['number']}px }}",
        f".code {{ font-size: {SIZES['code']}px; font-family: {MONO} }}",
        ".arrow { fill: none; stroke-width: 1.6 }",
        ".dashed { fill: none; stroke-width: 1.4; stroke-dasharray: 5 4 }",
        ".grid { fill: none; stroke-width: 1 }",
    ]
    day = "\n".join(f"  {rule}" for rule in shapes + colours(night=False))
    night = "\n".join(f"    {rule}" for rule in colours(night=True))
    return f"\n{day}\n  @media (prefers-color-scheme: dark) {{\n{night}\n  }}\n"


def width_of(words, kind):
    "About how many pixels a text takes in the widest of the fonts"
    return LETTER[kind] * SIZES[kind] * len(words)


def short(x):
    "A coordinate with at most one decimal"
    return f"{x:.1f}".removesuffix(".0")


def svg(width, height, title, alt, parts):
    "A whole file: paper, title and description, style, then the parts"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(alt)}</desc>',
        f"<style>{stylesheet()}</style>",
        f"<defs>{HEAD}</defs>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="12"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Rect:
    "Where a shape lies, and the points that arrows start and end at"

    x: float
    y: float
    w: float
    h: float

    @property
    def left(self):
        return self.x, self.y + self.h / 2

    @property
    def right(self):
        return self.x + self.w, self.y + self.h / 2

    @property
    def top(self):
        return self.x + self.w / 2, self.y

    @property
    def bottom(self):
        return self.x + self.w / 2, self.y + self.h

    @property
    def middle(self):
        return self.x + self.w / 2, self.y + self.h / 2


@dataclass
class Drawing:
    """A picture under way: shapes are added one after another and come out as SVG.

    What does not fit its box or the paper raises a `ValueError`: no picture is written that cuts
    its words off.
    """

    title: str  # a few words; what a browser shows on hovering
    alt: str  # one or two sentences: the caption, and what a screen reader says
    width: int
    height: int
    parts: list = field(default_factory=list)

    def _inside(self, x, y, what):
        if not (0 <= x <= self.width and 0 <= y <= self.height):
            raise ValueError(f"{self.title}: {what} lies off the paper at {x:.0f}, {y:.0f}")

    def text(self, x, y, words, kind="note", anchor="middle"):
        "Words on a line at (x, y): kind is title, name, note, number or code"
        wide = width_of(words, kind)
        first = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        self._inside(first, y, repr(words))
        self._inside(first + wide, y, repr(words))
        self.parts.append(
            f'<text class="{kind}" x="{short(x)}" y="{short(y)}" text-anchor="{anchor}" '
            f'xml:space="preserve">{escape(words)}</text>'
        )

    def box(self, x, y, w, h, name="", note="", kind="module", corner=6, font="name"):
        "A box with its name and a line about it; kind is a name in FILLS, or outside"
        for words, size in ((name, font), (note, "note")):
            if width_of(words, size) > w - 6:
                raise ValueError(f"{self.title}: {words!r} is too wide for a box of {w}")
        self._inside(x, y, name)
        self._inside(x + w, y + h, name)
        self.parts.append(
            f'<rect class="{kind}" x="{short(x)}" y="{short(y)}" width="{short(w)}" '
            f'height="{short(h)}" rx="{corner}"/>'
        )
        middle = x + w / 2
        if name:
            self.text(middle, y + h / 2 + (-3 if note else 5), name, font)
        if note:
            self.text(middle, y + h / 2 + (15 if name else 4), note)
        return Rect(x, y, w, h)

    def arrow(self, *points, kind="arrow", head=True):
        "A line through points to its head; points are pairs, or `Rect.right` and the like"
        for x, y in points:
            self._inside(x, y, "an arrow")
        path = "M" + " L".join(f"{short(x)} {short(y)}" for x, y in points)
        end = ' marker-end="url(#head)"' if head else ""
        self.parts.append(f'<path class="{kind}"{end} d="{path}"/>')

    def bow(self, start, end, lift, kind="arrow", weight=1.6, head=True):
        "A curved arrow that rises `lift` pixels above its ends (0: straight); weight: thickness"
        (x0, y0), (x1, y1) = start, end
        middle = (x0 + x1) / 2, (y0 + y1) / 2 - 2 * lift
        self._inside(middle[0], (y0 + y1) / 2 - lift, "a bow")
        end = ' marker-end="url(#head)"' if head else ""
        self.parts.append(
            f'<path class="{kind}" style="stroke-width: {short(weight)}"{end} '
            f'd="M{short(x0)} {short(y0)} Q{short(middle[0])} {short(middle[1])} '
            f'{short(x1)} {short(y1)}"/>'
        )

    def dot(self, x, y, kind="heat-blue", r=5):
        "A small disc; kind is a name in FILLS, or heat-blue, heat-orange, heat-green"
        self._inside(x, y, "a dot")
        self.parts.append(
            f'<circle class="{kind}" cx="{short(x)}" cy="{short(y)}" r="{short(r)}"/>'
        )

    def sum(self, x, y, r=11):
        "A circle with a plus: two streams are added"
        self.dot(x, y, "thing", r)
        self.text(x, y + 5, "+", "name")
        return Rect(x - r, y - r, 2 * r, 2 * r)

    def group(self, x, y, w, h, name):
        "A dashed frame around several shapes, named in its upper left corner"
        self.box(x, y, w, h, kind="outside", corner=10)
        self.text(x + 10, y + 18, name, "note", "start")
        return Rect(x, y, w, h)

    def tokens(self, x, y, words, w=64, h=34, gap=8, kind="thing", kinds=None):
        "A strip of tokens, one box each; `kinds` gives each its own kind"
        kinds = kinds or [kind] * len(words)
        return [
            self.box(x + i * (w + gap), y, w, h, word, kind=k, corner=8, font="code")
            for i, (word, k) in enumerate(zip(words, kinds, strict=True))
        ]

    def matrix(
        self, x, y, rows, cell=46, high=1.0, heat="blue", decimals=2,
        down=(), across=(), name="",
    ):  # fmt: skip
        """Numbers on squares, the larger the deeper the colour (full at `high`); None is a masked
        cell. `down` and `across` name rows and columns, `name` stands above."""
        n, m = len(rows), len(rows[0])
        if name:
            self.text(x + m * cell / 2, y - (26 if across else 10), name, "name")
        for j, word in enumerate(across):
            self.text(x + (j + 0.5) * cell, y - 7, word, "code")
        for i, word in enumerate(down):
            self.text(x - 8, y + (i + 0.5) * cell + 5, word, "code", "end")
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                left, top = x + j * cell, y + i * cell
                square = (
                    f'x="{short(left)}" y="{short(top)}" width="{short(cell)}" '
                    f'height="{short(cell)}"'
                )
                if value is None:
                    self.parts.append(f'<rect class="quiet" {square}/>')
                    self.text(left + cell / 2, top + cell / 2 + 5, "−∞", "note")
                    continue
                depth = min(1, abs(value) / high)
                self.parts.append(
                    f'<rect class="heat-{heat}" fill-opacity="{depth:.2f}" {square}/>'
                    f'<rect class="grid" {square}/>'
                )
                if decimals is not None:
                    words = f"{value:.{decimals}f}".replace("-", "−")
                    self.text(left + cell / 2, top + cell / 2 + 5, words, "number")
        return Rect(x, y, m * cell, n * cell)

    def bars(self, x, y, values, words, w=120, h=20, gap=6, high=1.0, heat="blue", decimals=2):
        "Bars to the right of their words, with the number behind each; full width at `high`"
        for i, (value, word) in enumerate(zip(values, words, strict=True)):
            top = y + i * (h + gap)
            self.text(x - 8, top + h / 2 + 5, word, "code", "end")
            self.parts.append(
                f'<rect class="heat-{heat}" x="{short(x)}" y="{short(top)}" '
                f'width="{short(max(1, w * value / high))}" height="{short(h)}" rx="3"/>'
            )
            self.text(
                x + w * value / high + 6,
                top + h / 2 + 5,
                f"{value:.{decimals}f}",
                "number",
                "start",
            )
        return Rect(x, y, w, len(values) * (h + gap) - gap)

    def svg(self):
        "The picture as text"
        return svg(self.width, self.height, self.title, self.alt, self.parts)


# The example that runs through the course: four letters, and what one small head makes of them.
# Chapter 1 computes these weights by hand (d = 2, causal) and asserts that they are the same.
TOKENS = ("R", "O", "M", "E")
HEAD_WEIGHTS = (
    (1.00, None, None, None),
    (0.94, 0.06, None, None),
    (0.16, 0.67, 0.16, None),
    (0.51, 0.12, 0.25, 0.12),
)


def there_and_back(
    d: Drawing,
    there: list[tuple[str, str, str]],  # of three boxes, from left to right: name, words, tone
    back: list[tuple[str, str, str]],  # of the three below them, from right to left
) -> None:
    "Draw six boxes in a row that turns back once, with arrows between them"
    w, h = 112, 52
    left = (8, 146, 284)
    first = [d.box(x, 16, w, h, *words) for x, words in zip(left, there)]
    second = [d.box(x, 108, w, h, *words) for x, words in zip(left[::-1], back)]
    for one, other in zip(first, first[1:]):
        d.arrow(one.right, other.left)
    d.arrow(first[2].bottom, second[0].top)
    for one, other in zip(second, second[1:]):
        d.arrow(one.left, other.right)
