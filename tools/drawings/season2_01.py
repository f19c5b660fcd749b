"Season 2, chapter 1: the Llama block, rotary positions, SwiGLU, grouped queries"

import math

from .style import TOKENS, Drawing


def two_blocks():
    d = Drawing(
        "The block of GPT-2 and the block of a Llama",
        "One transformer block of GPT-2 beside one of a Llama, read from the bottom up. The "
        "residual stream and the order of the parts are the same; four parts are replaced: the "
        "norm, the positions, the attention and the feed-forward layer.",
        width=410,
        height=388,
    )
    columns = (
        ("GPT-2", "LayerNorm", "heads 32 / 32", "MLP: GELU", "positions", "thing"),
        ("Llama", "RMSNorm", "heads 32 / 8", "SwiGLU", "RoPE", "good"),
    )
    for i, (name, norm, attention, ffn, positions, kind) in enumerate(columns):
        x, left, wide = 24 + i * 202, 52 + i * 202, 142
        d.text(left + wide / 2, 30, name, "title")
        d.arrow((x, 384), (x, 40))
        for foot, part, words in ((334, "attention", attention), (192, "feed-forward", ffn)):
            small = d.box(left, foot - 40, wide, 30, norm, kind=kind)
            big = d.box(left, foot - 108, wide, 48, part, words, kind=kind)
            plus = d.sum(x, foot - 118, 10)
            d.arrow((x, foot - 25), small.left)
            d.arrow(small.top, big.bottom)
            d.arrow(big.top, (big.top[0], foot - 118), (plus.x + plus.w, foot - 118))
        where = "learned, added once" if kind == "thing" else "inside attention"
        place = d.box(left, 340, wide, 40, positions, where, kind=kind)
        if kind == "thing":
            plus = d.sum(x, 360, 10)
            d.arrow(place.left, (plus.x + plus.w, 360))
        else:
            right = left + wide
            d.arrow(place.right, (right + 9, 360), (right + 9, 250), (right, 250))
    return d


def rope_turns():
    d = Drawing(
        "Rotary positions",
        "A pair of channels of one query, drawn as an arrow, at four positions. RoPE turns it by "
        "the same angle more at each position. Between two tokens only the difference of their "
        "angles counts, and that is their distance.",
        width=400,
        height=218,
    )
    step = math.radians(35)
    for i, token in enumerate(TOKENS):
        x, y, r = 56 + i * 96, 108, 42
        d.dot(x, y, "quiet", r)
        d.dot(x, y, "heat-blue", 3)
        for j in range(i + 1):
            angle = math.radians(15) + j * step
            end = x + r * math.cos(angle), y - r * math.sin(angle)
            kind = "arrow" if j == i else "dashed"
            d.arrow((x, y), end, kind=kind, head=j == i)
        d.text(x, 32, f"position {i}", "note")
        d.text(x, 54, token, "code")
        d.text(x, 172, f"turned {i} × θ" if i else "not turned", "note")
    d.text(200, 202, "R and M differ by 2 θ here, and at positions 100 and 102", "note")
    return d


def gated_layer():
    d = Drawing(
        "GELU MLP and SwiGLU",
        "Two feed-forward layers, from top to bottom. GPT-2's widens, applies GELU and narrows "
        "again. SwiGLU widens twice: one branch goes through SiLU and multiplies the other, "
        "number by number, before the layer narrows.",
        width=400,
        height=378,
    )
    d.text(64, 32, "GPT-2", "title")
    x = d.box(36, 46, 56, 40, "x", kind="thing")
    up = d.box(16, 122, 96, 46, "up", "c → 4c", "module")
    gelu = d.box(26, 204, 76, 40, "GELU", kind="warm")
    down = d.box(16, 316, 96, 46, "down", "4c → c", "module")
    for a, b in ((x, up), (up, gelu), (gelu, down)):
        d.arrow(a.bottom, b.top)
    d.text(270, 32, "SwiGLU", "title")
    x = d.box(242, 46, 56, 40, "x", kind="thing")
    gate = d.box(160, 122, 96, 46, "gate", "c → d_ff", "plum")
    silu = d.box(170, 204, 76, 40, "SiLU", kind="warm")
    up = d.box(284, 122, 96, 46, "up", "c → d_ff", "module")
    down = d.box(222, 316, 96, 46, "down", "d_ff → c", "module")
    d.dot(270, 276, "thing", 12)
    d.text(270, 281, "×", "name")
    d.arrow(x.bottom, (270, 104), (208, 104), gate.top)
    d.arrow(x.bottom, (270, 104), (332, 104), up.top)
    d.arrow(gate.bottom, silu.top)
    d.arrow(silu.bottom, (208, 276), (258, 276))
    d.arrow(up.bottom, (332, 276), (282, 276))
    d.arrow((270, 288), down.top)
    return d


def grouped_query():
    d = Drawing(
        "Multi-head, grouped-query, multi-query",
        "Eight query heads and the keys and values they read. In multi-head attention each has its "
        "own pair; in grouped-query attention four share one; in multi-query attention all share "
        "one. Only the keys and values go into the cache.",
        width=400,
        height=394,
    )
    pitch, wide, left = 33, 24, 129
    for i, (name, groups) in enumerate((("multi-head", 8), ("grouped", 2), ("multi-query", 1))):
        top, share = 20 + i * 116, 8 // groups
        pairs = "1 pair" if groups == 1 else f"{groups} pairs"
        d.text(14, top + 34, name, "name", "start")
        d.text(14, top + 54, pairs, "note", "start")
        d.text(14, top + 70, "to remember", "note", "start")
        middles = [left + (g * share + (share - 1) / 2) * pitch + wide / 2 for g in range(groups)]
        for h in range(8):
            q = d.box(left + h * pitch, top, wide, 26, kind="module", corner=4)
            d.arrow(q.bottom, (middles[h // share], top + 66), head=False)
        for middle in middles:
            d.box(middle - wide / 2, top + 66, wide, 26, kind="warm", corner=4)
    d.box(14, 361, 18, 18, kind="module", corner=3)
    d.text(40, 374, "query head", "note", "start")
    d.box(160, 361, 18, 18, kind="warm", corner=3)
    d.text(186, 374, "a key and a value", "note", "start")
    return d


PICTURES = (two_blocks, rope_turns, gated_layer, grouped_query)
