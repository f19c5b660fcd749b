"Season 2, chapter 1: the Llama block, rotary positions, SwiGLU, grouped queries"

import math
from .style import TOKENS, Drawing


def two_blocks():
    d = Drawing(
        "The block of GPT-2 and the block of a Llama",
        "One transformer block of GPT-2 beside one of a Llama, read from the bottom up. The "
        "residual stream and the order of the parts are the same; four parts are exchanged: the "
        "norm, the positions, the attention and the feed-forward layer.",
        width=520,
        height=372,
    )
    columns = (
        ("GPT-2", "LayerNorm", "heads 32 / 32", "MLP: GELU", "learned, added once", "thing"),
        ("Llama", "RMSNorm", "heads 32 / 8", "SwiGLU", "RoPE, inside attention", "good"),
    )
    for i, (name, norm, attention, ffn, positions, kind) in enumerate(columns):
        x, left = 32 + i * 256, 62 + i * 256
        d.text(left + 85, 30, name, "title")
        d.arrow((x, 340), (x, 40))
        for foot, part, words in ((334, "attention", attention), (192, "feed-forward", ffn)):
            small = d.box(left, foot - 40, 170, 30, norm, kind=kind)
            big = d.box(left, foot - 108, 170, 48, part, words, kind=kind)
            plus = d.sum(x, foot - 118, 10)
            d.arrow((x, foot - 25), small.left)
            d.arrow(small.top, big.bottom)
            d.arrow(big.top, (big.top[0], foot - 118), (plus.x + plus.w, foot - 118))
        d.text(left + 85, 360, f"positions: {positions}", "note")
    return d


def rope_turns():
    d = Drawing(
        "Rotary positions",
        "A pair of channels of one query, drawn as an arrow, at four positions. RoPE turns it by "
        "the same angle more at each position. Between two tokens only the difference of their "
        "angles counts, and that is their distance.",
        width=516,
        height=228,
    )
    step = math.radians(35)
    for i, token in enumerate(TOKENS):
        x, y, r = 66 + i * 128, 112, 46
        d.dot(x, y, "quiet", r)
        d.dot(x, y, "heat-blue", 3)
        for j in range(i + 1):
            angle = math.radians(15) + j * step
            end = x + r * math.cos(angle), y - r * math.sin(angle)
            kind = "arrow" if j == i else "dashed"
            d.arrow((x, y), end, kind=kind, head=j == i)
        d.text(x, 36, f"position {i}", "note")
        d.text(x, 56, token, "code")
        d.text(x, 180, f"turned by {i} × θ" if i else "not turned", "note")
    d.text(258, 212, "R and M differ by 2 θ here, and at positions 100 and 102", "note")
    return d


def gated_layer():
    d = Drawing(
        "GELU MLP and SwiGLU",
        "Two feed-forward layers, from left to right. GPT-2's widens, applies GELU and narrows "
        "again. SwiGLU widens twice: one branch goes through SiLU and multiplies the other, "
        "number by number, before the layer narrows.",
        width=520,
        height=262,
    )
    d.text(16, 30, "GPT-2", "title", "start")
    x = d.box(16, 46, 56, 40, "x", kind="thing")
    up = d.box(116, 46, 96, 40, "up", "c → 4c", "module")
    gelu = d.box(256, 46, 76, 40, "GELU", kind="warm")
    down = d.box(404, 46, 96, 40, "down", "4c → c", "module")
    for a, b in ((x, up), (up, gelu), (gelu, down)):
        d.arrow(a.right, b.left)
    d.text(16, 132, "SwiGLU", "title", "start")
    x = d.box(16, 178, 56, 40, "x", kind="thing")
    gate = d.box(116, 146, 96, 40, "gate", "c → d_ff", "plum")
    silu = d.box(256, 146, 76, 40, "SiLU", kind="warm")
    up = d.box(116, 208, 96, 40, "up", "c → d_ff", "module")
    down = d.box(404, 178, 96, 40, "down", "d_ff → c", "module")
    d.dot(366, 198, "thing", 12)
    d.text(366, 203, "×", "name")
    d.arrow(x.right, gate.left)
    d.arrow(x.right, up.left)
    d.arrow(gate.right, silu.left)
    d.arrow(silu.right, (366, 166), (366, 186))
    d.arrow(up.right, (366, 228), (366, 210))
    d.arrow((378, 198), down.left)
    return d


def grouped_query():
    d = Drawing(
        "Multi-head, grouped-query, multi-query",
        "Eight query heads and the keys and values they read. In multi-head attention each has its "
        "own pair; in grouped-query attention four share one; in multi-query attention all share "
        "one. Only the keys and values go into the cache.",
        width=520,
        height=236,
    )
    for i, (name, groups) in enumerate((("multi-head", 8), ("grouped", 2), ("multi-query", 1))):
        left = 16 + i * 172
        d.text(left + 76, 34, name, "name")
        for h in range(8):
            q = d.box(left + h * 19, 58, 15, 30, kind="module", corner=4)
            share = 8 // groups
            g = h // share
            middle = left + (g * share + (share - 1) / 2) * 19 + 7.5
            d.arrow(q.bottom, (middle, 146), head=False)
        for g in range(groups):
            share = 8 // groups
            middle = left + (g * share + (share - 1) / 2) * 19 + 7.5
            d.box(middle - 7.5, 146, 15, 30, kind="warm", corner=4)
        pairs = "1 pair" if groups == 1 else f"{groups} pairs"
        d.text(left + 76, 202, f"{pairs} to remember", "note")
    d.text(260, 224, "above: query heads; below: a key and a value each", "note")
    return d


PICTURES = (two_blocks, rope_turns, gated_layer, grouped_query)
