"Chapter 1: attention over four tokens, heads, the block, GPT as a whole"

from .style import HEAD_WEIGHTS, TOKENS, Drawing


def attention_four_tokens():
    d = Drawing(
        "Self-attention over four tokens",
        "Self-attention over the four tokens R, O, M, E, seen from the last one. Its query is "
        "compared with the key of every token so far; the softmax turns the four scores into "
        "weights that add up to 1; the output is the values, mixed in these proportions.",
        width=620,
        height=368,
    )
    w, gap, x0 = 86, 40, 110
    tokens = d.tokens(x0, 262, TOKENS, w, 40, gap, kinds=["thing"] * 3 + ["module"])
    d.text(x0 - 14, 287, "tokens", "note", "end")
    d.text(x0 - 14, 201, "weights", "note", "end")
    d.text(x0 - 14, 64, "values, mixed", "note", "end")
    end = tokens[3].middle[0], 84
    for token, weight in zip(tokens, HEAD_WEIGHTS[3], strict=True):
        x = token.middle[0]
        d.arrow((x, 262), (x, 210), head=False)
        d.bow((x, 184), end, 0, weight=1 + 9 * weight, head=False)
        d.box(x - 27, 184, 54, 26, f"{weight:.2f}", kind="quiet", corner=13, font="number")
    d.box(tokens[3].x, 40, w, 44, "output", kind="good")
    d.text(tokens[3].middle[0], 324, "its query asks", "note")
    d.text(tokens[1].middle[0], 324, "their keys answer: how well do we match?", "note")
    d.text(tokens[1].middle[0], 344, "their values are what is handed over", "note")
    return d


PICTURES = (attention_four_tokens,)
