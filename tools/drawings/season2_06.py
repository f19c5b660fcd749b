"Season 2, chapter 6: what stands between dollars and answers"

from .style import Drawing


def dollars_to_answers():
    d = Drawing(
        "From dollars to answers",
        "Six boxes in a row that turns back once. Dollars become seconds on a GPU, seconds become "
        "tokens, tokens become what is learned from them, that becomes a model, and the model "
        "gives answers. Each box names the ideas of the page that make it larger.",
        width=404,
        height=176,
    )
    w, h = 112, 52
    first = [
        d.box(8, 16, w, h, "dollars", "$175", "quiet"),
        d.box(146, 16, w, h, "seconds", "price: Idea 1", "module"),
        d.box(284, 16, w, h, "tokens", "speed: 1 and 5", "module"),
    ]
    second = [
        d.box(284, 108, w, h, "learned", "2, 3 and 4", "warm"),
        d.box(146, 108, w, h, "a model", "its shape: 6", "warm"),
        d.box(8, 108, w, h, "answers", "its size: 7", "good"),
    ]
    for one, other in ((first[0], first[1]), (first[1], first[2])):
        d.arrow(one.right, other.left)
    d.arrow(first[2].bottom, second[0].top)
    for one, other in ((second[0], second[1]), (second[1], second[2])):
        d.arrow(one.left, other.right)
    return d


PICTURES = (dollars_to_answers,)
