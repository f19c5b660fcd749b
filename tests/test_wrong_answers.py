"""Checks of exercises resist answers that are nearly right: each of these must fail, with words."""

import pytest
from test_exercises import CHAPTERS, exercises, namespace

WRONG = {  # (chapter, exercise) -> answers that look right
    ("01_chat_data", "mask_of"): [
        # forgets that the end is learned
        """
def mask_of(ids, marks):
    mask, speaks = [], False
    for i in ids:
        speaks = (speaks and i != marks.end) or i == marks.assistant
        mask.append(speaks and i != marks.assistant)
    return mask
""",
        # the last turn only
        """
def mask_of(ids, marks):
    last = max(n for n, i in enumerate(ids) if i == marks.assistant)
    return [n > last for n in range(len(ids))]
""",
        # the mark is learned too
        """
def mask_of(ids, marks):
    mask, speaks = [], False
    for i in ids:
        speaks = i == marks.assistant or (speaks and i != marks.user)
        mask.append(speaks)
    return mask
""",
    ],
    ("01_chat_data", "first_fit"): [
        # in the order given
        """
def first_fit(lengths, size):
    rows, room = [], []
    for i, n in enumerate(lengths):
        r = next((r for r in range(len(rows)) if room[r] >= n), len(rows))
        if r == len(rows):
            rows.append([])
            room.append(size)
        rows[r].append(i)
        room[r] -= n
    return rows
""",
        # only the last row is open
        """
def first_fit(lengths, size):
    rows, room = [], 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i] > room:
            rows.append([])
            room = size
        rows[-1].append(i)
        room -= lengths[i]
    return rows
""",
        # lengths instead of numbers
        """
def first_fit(lengths, size):
    rows = []
    for n in sorted(lengths, reverse=True):
        row = next((r for r in rows if sum(r) + n <= size), None)
        if row is None:
            rows.append(row := [])
        row.append(n)
    return rows
""",
    ],
    ("01_chat_data", "leaks_across"): [
        # changes everything at once, to itself in one case
        """
def leaks_across(logits_of, ids, start, vocab_size):
    changed = ids.clone()
    changed[start - 1] = (changed[start - 1] + 1) % vocab_size
    return not torch.equal(logits_of(changed)[start:], logits_of(ids)[start:])
""",
        # looks at one position only
        """
def leaks_across(logits_of, ids, start, vocab_size):
    changed = ids.clone()
    changed[:start] = (changed[:start] + 1) % vocab_size
    return not torch.equal(logits_of(changed)[start], logits_of(ids)[start])
""",
        # compares the first conversation with itself
        """
def leaks_across(logits_of, ids, start, vocab_size):
    changed = ids.clone()
    changed[0] = (changed[0] + 1) % vocab_size
    return not torch.equal(logits_of(changed), logits_of(ids))
""",
    ],
}
PAGES = {path.stem: path for path in CHAPTERS}
CASES = [
    pytest.param(chapter, name, answer, id=f"{chapter}-{name}-{n}")
    for (chapter, name), answers in WRONG.items()
    for n, answer in enumerate(answers, 1)
]


@pytest.mark.parametrize("chapter, name, answer", CASES)
def test_a_wrong_answer_fails_with_words(chapter, name, answer):
    space = namespace(PAGES[chapter])
    exec(answer, space)
    with pytest.raises(AssertionError) as e:
        exec(exercises(PAGES[chapter])[1][name], space)
    assert len(str(e.value)) > 15


def test_three_wrong_answers_for_each_exercise_of_season_3():
    for path in CHAPTERS:
        if path.parent.name == "season3":
            for name in exercises(path)[0]:
                assert len(WRONG.get((path.stem, name), [])) >= 3, f"{path.stem}: {name}"
