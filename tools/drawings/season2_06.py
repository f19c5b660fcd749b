"Season 2, chapter 6: what stands between dollars and answers"

from .style import Drawing, there_and_back


def dollars_to_answers():
    d = Drawing(
        "From dollars to answers",
        "Six boxes in a row that turns back once. Dollars become seconds on a GPU, seconds become "
        "tokens, tokens become what is learned from them, that becomes a model, and the model "
        "gives answers. Each box names the part of the page that makes it larger.",
        width=404,
        height=176,
    )
    there = [
        ("dollars", "$175", "quiet"),
        ("seconds", "price: Idea 1", "module"),
        ("tokens", "speed: 1 and 3", "module"),
    ]
    back = [
        ("learned", "2 and 4", "warm"),
        ("a model", "the plan", "warm"),
        ("answers", "own page", "good"),
    ]
    there_and_back(d, there, back)
    return d


def two_lives():
    d = Drawing(
        "What two lives cost",
        "The cost of two models' lives as bars, in units of 10²⁰ FLOPs. The model of 2B "
        "parameters costs 2.4 to train and 12 to serve 300B tokens. The one of 0.5B, which has to "
        "read more to be as good, costs 3.75 to train and 3 to serve.",
        width=404,
        height=168,
    )
    left, unit = 92, 18
    lives = (("2B", "read 20B", 2.4, 12.0), ("0.5B", "reads 125B", 3.75, 3.0))
    for i, (name, reads, training, serving) in enumerate(lives):
        y = 40 + i * 56
        d.text(left - 8, y + 14, name, "name", "end")
        d.text(left - 8, y + 30, reads, "note", "end")
        trained, served = training * unit, serving * unit
        d.box(left, y, trained, 36, f"{training:g}", kind="module", corner=3, font="number")
        d.box(left + trained, y, served, 36, f"{serving:g}", kind="warm", corner=3, font="number")
    d.text(left, 28, "training", "note", "start")
    d.text(left + 4.2 * unit, 28, "300B tokens of answers", "note", "start")
    d.text(left, 156, "in 10²⁰ FLOPs", "note", "start")
    return d


PICTURES = (dollars_to_answers, two_lives)
