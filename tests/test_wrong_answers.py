"""Checks of exercises resist answers that are nearly right: each of these must fail, with words."""

import pytest
from test_exercises import CHAPTERS, exercises, namespace

WRONG = {  # (chapter, exercise) -> answers that look right
    ("00_guess_the_next_letter", "shapes"): [
        # the axis that is named stays, the other goes
        """
def shapes():
    return [(4,), (4, 1, 3), (4, 4), (2, 3)]
""",
        # the new axis behind the others
        """
def shapes():
    return [(3,), (4, 3, 1), (4, 4), (2, 3)]
""",
        # the outer lengths go away
        """
def shapes():
    return [(3,), (4, 1, 3), (3, 3), (2, 3)]
""",
    ],
    ("00_guess_the_next_letter", "surest"): [
        # the share of all pairs, not of those of the character
        """
def surest(text, least):
    pairs = Counter(zip(text, text[1:]))
    first = Counter(text[:-1])
    best = {}
    for (a, b), n in pairs.items():
        if first[a] >= least and n > best.get(a, ("", 0))[1]:
            best[a] = (b, n)
    rows = [(a, b, n / (len(text) - 1)) for a, (b, n) in best.items()]
    return sorted(rows, key=lambda row: -row[2])
""",
        # rare characters too
        """
def surest(text, least):
    rows = {}
    for a, b in zip(text, text[1:]):
        rows.setdefault(a, Counter())[b] += 1
    best = [(a, *row.most_common(1)[0], row.total()) for a, row in rows.items()]
    return sorted([(a, b, n / all) for a, b, n, all in best], key=lambda row: -row[2])
""",
        # the last character counts, though nothing follows it
        """
def surest(text, least):
    rows = {}
    for a, b in zip(text, text[1:]):
        rows.setdefault(a, Counter())[b] += 1
    best = []
    for a, row in rows.items():
        if text.count(a) >= least:
            b, n = row.most_common(1)[0]
            best.append((a, b, n / text.count(a)))
    return sorted(best, key=lambda row: -row[2])
""",
        # the least sure first
        """
def surest(text, least):
    rows = {}
    for a, b in zip(text, text[1:]):
        rows.setdefault(a, Counter())[b] += 1
    best = [(a, *row.most_common(1)[0], row.total()) for a, row in rows.items()]
    found = [(a, b, n / all) for a, b, n, all in best if all >= least]
    return sorted(found, key=lambda row: row[2])
""",
    ],
    ("00_guess_the_next_letter", "counts_loss"): [
        # the vocabulary of the seen text only
        """
def counts_loss(seen, unseen, past, begin):
    V = len(set(seen))
    together = Counter(seen[i : i + past + 1] for i in range(len(seen) - past))
    alone = Counter(seen[i : i + past] for i in range(len(seen) - past))
    total = 0
    for i in range(past, len(unseen)):
        piece = unseen[i - past : i + 1]
        p = (together[piece] + begin) / (alone[piece[:-1]] + begin * V)
        total -= math.log(p)
    return total / (len(unseen) - past)
""",
        # the pairs, whatever the past
        """
def counts_loss(seen, unseen, past, begin):
    V = len(set(seen + unseen))
    together = Counter(zip(seen, seen[1:]))
    alone = Counter(seen[:-1])
    total = 0
    for pair in zip(unseen, unseen[1:]):
        total -= math.log((together[pair] + begin) / (alone[pair[0]] + begin * V))
    return total / (len(unseen) - 1)
""",
        # rows that do not add up to 1
        """
def counts_loss(seen, unseen, past, begin):
    V = len(set(seen + unseen))
    together = Counter(seen[i : i + past + 1] for i in range(len(seen) - past))
    alone = Counter(seen[i : i + past] for i in range(len(seen) - past))
    total = 0
    for i in range(past, len(unseen)):
        piece = unseen[i - past : i + 1]
        total -= math.log((together[piece] + begin) / (alone[piece[:-1]] + begin))
    return total / (len(unseen) - past)
""",
        # every count begins at 1
        """
def counts_loss(seen, unseen, past, begin):
    V = len(set(seen + unseen))
    together = Counter(seen[i : i + past + 1] for i in range(len(seen) - past))
    alone = Counter(seen[i : i + past] for i in range(len(seen) - past))
    total = 0
    for i in range(past, len(unseen)):
        piece = unseen[i - past : i + 1]
        total -= math.log((together[piece] + 1) / (alone[piece[:-1]] + V))
    return total / (len(unseen) - past)
""",
    ],
    ("00_guess_the_next_letter", "row_slopes"): [
        # what is true minus what the model says
        """
def row_slopes(logits, shares):
    return shares - logits.softmax(-1)
""",
        # logits are no probabilities
        """
def row_slopes(logits, shares):
    return logits - shares
""",
        # only the entries that came
        """
def row_slopes(logits, shares):
    return (logits.softmax(-1) - 1) * shares
""",
        # one number
        """
def row_slopes(logits, shares):
    return (logits.softmax(-1) - shares).sum()
""",
    ],
    ("00_guess_the_next_letter", "descend"): [
        # uphill
        """
def descend(loss, start, rate, steps):
    w = start
    for _ in range(steps):
        w = w + rate * (loss(w + 1e-4) - loss(w - 1e-4)) / 2e-4
    return w
""",
        # the slope of the first place, for ever
        """
def descend(loss, start, rate, steps):
    slope = (loss(start + 1e-4) - loss(start - 1e-4)) / 2e-4
    return start - rate * slope * steps
""",
        # a step of one size, to the right or to the left
        """
def descend(loss, start, rate, steps):
    w = start
    for _ in range(steps):
        w = w + rate if loss(w + 1e-4) < loss(w) else w - rate
    return w
""",
    ],
    ("01_first_transformer", "attend"): [
        # no mask
        """
def attend(x_tc, real_t, W_query, W_key, W_value):
    q, k, v = x_tc @ W_query, x_tc @ W_key, x_tc @ W_value
    future = torch.ones(len(x_tc), len(x_tc)).triu(1).bool()
    return (q @ k.T / k.size(-1) ** 0.5).masked_fill(~real_t, -torch.inf).softmax(-1) @ v
""",
        # not scaled
        """
def attend(x_tc, real_t, W_query, W_key, W_value):
    q, k, v = x_tc @ W_query, x_tc @ W_key, x_tc @ W_value
    future = torch.ones(len(x_tc), len(x_tc)).triu(1).bool()
    weights = (q @ k.T).masked_fill(future | ~real_t, -torch.inf).softmax(-1)
    return weights.nan_to_num(0) @ v
""",
        # scaled as for two numbers
        """
def attend(x_tc, real_t, W_query, W_key, W_value):
    q, k, v = x_tc @ W_query, x_tc @ W_key, x_tc @ W_value
    future = torch.ones(len(x_tc), len(x_tc)).triu(1).bool()
    weights = (q @ k.T / 2**0.5).masked_fill(future | ~real_t, -torch.inf).softmax(-1)
    return weights.nan_to_num(0) @ v
""",
        # padding is looked at
        """
def attend(x_tc, real_t, W_query, W_key, W_value):
    q, k, v = x_tc @ W_query, x_tc @ W_key, x_tc @ W_value
    future = torch.ones(len(x_tc), len(x_tc)).triu(1).bool()
    return (q @ k.T / k.size(-1) ** 0.5).masked_fill(future, -torch.inf).softmax(-1) @ v
""",
        # padding has no values, but takes its share
        """
def attend(x_tc, real_t, W_query, W_key, W_value):
    q, k, v = x_tc @ W_query, x_tc @ W_key, x_tc @ W_value
    future = torch.ones(len(x_tc), len(x_tc)).triu(1).bool()
    weights = (q @ k.T / k.size(-1) ** 0.5).masked_fill(future, -torch.inf).softmax(-1)
    return (weights * real_t) @ v
""",
        # nan at the padding
        """
def attend(x_tc, real_t, W_query, W_key, W_value):
    q, k, v = x_tc @ W_query, x_tc @ W_key, x_tc @ W_value
    future = torch.ones(len(x_tc), len(x_tc)).triu(1).bool()
    weights = (q @ k.T / k.size(-1) ** 0.5).masked_fill(future | ~real_t, -torch.inf).softmax(-1)
    return weights @ v
""",
        # padding asks nothing, but is still found
        """
def attend(x_tc, real_t, W_query, W_key, W_value):
    q, k, v = x_tc @ W_query, x_tc @ W_key, x_tc @ W_value
    future = torch.ones(len(x_tc), len(x_tc)).triu(1).bool()
    scores = (q @ k.T / k.size(-1) ** 0.5).masked_fill(future | ~real_t[:, None], -torch.inf)
    return scores.softmax(-1).nan_to_num(0) @ v
""",
        # keys ask and queries answer
        """
def attend(x_tc, real_t, W_query, W_key, W_value):
    q, k, v = x_tc @ W_query, x_tc @ W_key, x_tc @ W_value
    future = torch.ones(len(x_tc), len(x_tc)).triu(1).bool()
    scores = k @ q.T / k.size(-1) ** 0.5
    return scores.masked_fill(future | ~real_t, -torch.inf).softmax(-1).nan_to_num(0) @ v
""",
        # only the weights
        """
def attend(x_tc, real_t, W_query, W_key, W_value):
    q, k, v = x_tc @ W_query, x_tc @ W_key, x_tc @ W_value
    future = torch.ones(len(x_tc), len(x_tc)).triu(1).bool()
    weights = (q @ k.T / k.size(-1) ** 0.5).masked_fill(future | ~real_t, -torch.inf)
    return weights.softmax(-1).nan_to_num(0)
""",
    ],
    ("01_first_transformer", "repaired"): [
        # zeros as scores still get a weight
        """
def repaired(q, k):
    score = q @ k.T / q.size(-1) ** 0.5
    future = torch.ones(score.shape).triu(1).bool()
    return score.masked_fill(future, 0).softmax(-1)
""",
        # no mask
        """
def repaired(q, k):
    return (q @ k.T / q.size(-1) ** 0.5).softmax(-1)
""",
        # columns add up to 1
        """
def repaired(q, k):
    score = q @ k.T / q.size(-1) ** 0.5
    future = torch.ones(score.shape).triu(1).bool()
    return score.masked_fill(future, -torch.inf).softmax(0)
""",
        # nobody sees itself
        """
def repaired(q, k):
    score = q @ k.T / q.size(-1) ** 0.5
    future = torch.ones(score.shape).triu(0).bool()
    return score.masked_fill(future, -1e9).softmax(-1)
""",
        # rows add up to 1 because all places are equal
        """
def repaired(q, k):
    ones = torch.ones(len(q), len(q)).tril()
    return ones / ones.sum(-1, keepdim=True)
""",
        # not scaled
        """
def repaired(q, k):
    score = q @ k.T
    future = torch.ones(score.shape).triu(1).bool()
    return score.masked_fill(future, -torch.inf).softmax(-1)
""",
    ],
    ("01_first_transformer", "block_after"): [
        # the norm before each part
        """
def block_after(x_btc, norm1, attn, norm2, ffn):
    x_btc = x_btc + attn(norm1(x_btc))
    return x_btc + ffn(norm2(x_btc))
""",
        # the result is normed, not the sum
        """
def block_after(x_btc, norm1, attn, norm2, ffn):
    x_btc = x_btc + norm1(attn(x_btc))
    return x_btc + norm2(ffn(x_btc))
""",
        # nothing is added
        """
def block_after(x_btc, norm1, attn, norm2, ffn):
    return norm2(ffn(norm1(attn(x_btc))))
""",
        # both parts read the same stream
        """
def block_after(x_btc, norm1, attn, norm2, ffn):
    return norm2(norm1(x_btc + attn(x_btc)) + ffn(x_btc))
""",
        # the second sum is not normed
        """
def block_after(x_btc, norm1, attn, norm2, ffn):
    x_btc = norm1(x_btc + attn(x_btc))
    return x_btc + ffn(norm2(x_btc))
""",
    ],
    ("01_first_transformer", "loss_by_position"): [
        # a loss for each text
        """
def loss_by_position(model, x_bt, y_bt):
    logits = model(x_bt).transpose(1, 2)
    return F.cross_entropy(logits, y_bt, reduction="none").mean(1)
""",
        # one number for all
        """
def loss_by_position(model, x_bt, y_bt):
    return F.cross_entropy(model(x_bt).flatten(0, 1), y_bt.flatten())
""",
        # the mean loss at every position
        """
def loss_by_position(model, x_bt, y_bt):
    loss = F.cross_entropy(model(x_bt).flatten(0, 1), y_bt.flatten())
    return loss.expand(y_bt.size(1))
""",
        # positions and texts mixed up
        """
def loss_by_position(model, x_bt, y_bt):
    loss = F.cross_entropy(model(x_bt).flatten(0, 1), y_bt.flatten(), reduction="none")
    return loss.view(y_bt.size(1), -1).mean(1)
""",
        # the sum over the texts
        """
def loss_by_position(model, x_bt, y_bt):
    logits = model(x_bt).transpose(1, 2)
    return F.cross_entropy(logits, y_bt, reduction="none").sum(0)
""",
        # the answers are what was read
        """
def loss_by_position(model, x_bt, y_bt):
    logits = model(x_bt).transpose(1, 2)
    return F.cross_entropy(logits, x_bt, reduction="none").mean(0)
""",
    ],
    ("01_first_transformer", "fifth_row"): [
        # not scaled
        """
def fifth_row():
    return [0.83, 0.02, 0.11, 0.02, 0.02]
""",
        # the row of E again
        """
def fifth_row():
    return [0.51, 0.12, 0.25, 0.12, 0.0]
""",
        # equal weights
        """
def fifth_row():
    return [0.2] * 5
""",
        # only four
        """
def fifth_row():
    return [0.7, 0.06, 0.18, 0.06]
""",
    ],
    ("01_first_transformer", "near_weights"): [
        # no penalty
        """
def near_weights(q, k, slope):
    return attention_weights(q, k)
""",
        # far is preferred
        """
def near_weights(q, k, slope):
    place = torch.arange(q.size(-2))
    distance = place[:, None] - place
    score = q @ k.mT / q.size(-1) ** 0.5 + slope * distance
    return score.masked_fill(distance < 0, -torch.inf).softmax(-1)
""",
        # the penalty is scaled too
        """
def near_weights(q, k, slope):
    place = torch.arange(q.size(-2))
    distance = place[:, None] - place
    score = (q @ k.mT - slope * distance) / q.size(-1) ** 0.5
    return score.masked_fill(distance < 0, -torch.inf).softmax(-1)
""",
        # weights are lowered after the softmax
        """
def near_weights(q, k, slope):
    place = torch.arange(q.size(-2))
    distance = (place[:, None] - place).clamp(min=0)
    return attention_weights(q, k) * (-slope * distance).exp()
""",
        # the future is only far away
        """
def near_weights(q, k, slope):
    place = torch.arange(q.size(-2))
    distance = (place[:, None] - place).abs()
    return (q @ k.mT / q.size(-1) ** 0.5 - slope * distance).softmax(-1)
""",
        # the scores are forgotten
        """
def near_weights(q, k, slope):
    place = torch.arange(q.size(-2))
    distance = place[:, None] - place
    score = 0 * (q @ k.mT) - slope * distance
    return score.masked_fill(distance < 0, -torch.inf).softmax(-1)
""",
    ],
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
    ("02_sft", "imitator"): [
        # the mean number of carries, instead of the mean over sums
        """
def imitator(forget):
    a, b = map(np.ravel, np.meshgrid(np.arange(1000), np.arange(1000)))
    return float((1 - forget) ** carries_of(a, b).mean())
""",
        # kept and forgotten exchanged
        """
def imitator(forget):
    a, b = map(np.ravel, np.meshgrid(np.arange(1000), np.arange(1000)))
    return float((forget ** carries_of(a, b)).mean())
""",
        # every number of carries weighs the same
        """
def imitator(forget):
    return sum((1 - forget) ** k for k in range(4)) / 4
""",
    ],
    ("02_sft", "piece_losses"): [
        # a mean of means
        """
def piece_losses(logits_btv, targets_bt, rows):
    pieces = list(zip(logits_btv.split(rows), targets_bt.split(rows)))
    return [
        F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=-100) / len(pieces)
        for z, y in pieces
    ]
""",
        # the same, without the pieces that ask nothing
        """
def piece_losses(logits_btv, targets_bt, rows):
    pieces = list(zip(logits_btv.split(rows), targets_bt.split(rows)))
    return [
        (z * 0).sum()
        if (y == -100).all()
        else F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=-100) / len(pieces)
        for z, y in pieces
    ]
""",
        # divides by all tokens
        """
def piece_losses(logits_btv, targets_bt, rows):
    return [
        F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
        / targets_bt.numel()
        for z, y in zip(logits_btv.split(rows), targets_bt.split(rows))
    ]
""",
    ],
    ("02_sft", "too_good"): [
        # any loss below the floor
        """
def too_good(loss, n, floor=0.1935):
    return "alarm" if loss < floor else "fine"
""",
        # a fixed margin
        """
def too_good(loss, n, floor=0.1935):
    return "alarm" if loss < floor - 0.03 else "fine"
""",
        # both sides
        """
def too_good(loss, n, floor=0.1935):
    q = floor / math.log(2)
    return "alarm" if abs(loss - floor) > 3.09 * math.log(2) * (q * (1 - q) / n) ** 0.5 else "fine"
""",
    ],
    ("03_lora", "adapter_size"): [
        # the matrices' own size
        """
def adapter_size(shapes, rank):
    one = sum(o * i for o, i in shapes)
    return rank * one, rank
""",
        # rounds down
        """
def adapter_size(shapes, rank):
    one = sum(o + i for o, i in shapes)
    return rank * one, sum(o * i for o, i in shapes) // one
""",
        # the first layer only
        """
def adapter_size(shapes, rank):
    o, i = shapes[0]
    return rank * (o + i), -(-o * i // (o + i))
""",
    ],
    ("03_lora", "merged_weight"): [
        # without the scale
        """
def merged_weight(w, a, b, alpha):
    return w + b @ a
""",
        # alpha alone
        """
def merged_weight(w, a, b, alpha):
    return w + alpha * (b @ a)
""",
        # in place
        """
def merged_weight(w, a, b, alpha):
    return w.add_(alpha / len(a) * (b @ a))
""",
    ],
    ("03_lora", "extract_adapter"): [
        # the first rows and columns
        """
def extract_adapter(before, after, rank):
    delta = after - before
    return delta[:rank], torch.eye(len(delta))[:, :rank]
""",
        # of the weight, not of the difference
        """
def extract_adapter(before, after, rank):
    u, s, vt = torch.linalg.svd(after, full_matrices=False)
    return vt[:rank], u[:, :rank] * s[:rank]
""",
        # the singular values twice
        """
def extract_adapter(before, after, rank):
    u, s, vt = torch.linalg.svd(after - before, full_matrices=False)
    return s[:rank, None] * vt[:rank], u[:, :rank] * s[:rank]
""",
    ],
    ("04_dpo", "is_dpo"): [
        # at the start alone
        """
def is_dpo(loss):
    zero = torch.zeros(2)
    return math.isclose(loss(zero, zero, zero, zero, beta=0.3).item(), math.log(2), rel_tol=1e-6)
""",
        # a single pair
        """
def is_dpo(loss):
    a, b, ref_a, ref_b = (torch.tensor([x]) for x in (-1.0, -2.0, -3.0, -1.5))
    wanted = math.log(1 + math.exp(-0.3 * 2.5))
    return math.isclose(loss(a, b, ref_a, ref_b, beta=0.3).item(), wanted, rel_tol=1e-5)
""",
        # with a beta of 1
        """
def is_dpo(loss):
    a, b, ref_a, ref_b = (torch.tensor([x, x]) for x in (-1.0, -2.0, -3.0, -1.5))
    wanted = math.log(1 + math.exp(-2.5))
    return math.isclose(loss(a, b, ref_a, ref_b, beta=1.0).item(), wanted, rel_tol=1e-5)
""",
        # a reference that says nothing
        """
def is_dpo(loss):
    a, b, zero = torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -2.0]), torch.zeros(2)
    wanted = math.log(1 + math.exp(-0.3))
    return math.isclose(loss(a, b, zero, zero, beta=0.3).item(), wanted, rel_tol=1e-5)
""",
    ],
    ("04_dpo", "beta_for"): [
        # probabilities instead of odds
        """
def beta_for(p, goal):
    return 1 / math.log(goal / p)
""",
        # the inverse
        """
def beta_for(p, goal):
    return math.log(goal / (1 - goal) * (1 - p) / p)
""",
        # forgets where it starts
        """
def beta_for(p, goal):
    return 1 / math.log(goal / (1 - goal)) if goal > 0.5 else 1.0
""",
    ],
    ("04_dpo", "diagnose"): [
        # the loss alone
        """
def diagnose(log, tokens):
    return "not learning" if log[-1]["loss"] > 0.68 else "healthy"
""",
        # the last row alone
        """
def diagnose(log, tokens):
    if abs(log[-1]["loss"] - math.log(2)) < 0.01:
        return "not learning"
    return "collapse" if log[-1]["chosen_gain"] / tokens < -0.5 else "healthy"
""",
        # any fall is a collapse
        """
def diagnose(log, tokens):
    end = log[-max(1, len(log) // 10) :]
    if abs(np.mean([r["loss"] for r in end]) - math.log(2)) < 0.01:
        return "not learning"
    return "collapse" if np.mean([r["rejected_gain"] for r in end]) / tokens < -0.5 else "healthy"
""",
        # a loss that rose is taken for a collapse, or for health
        """
def diagnose(log, tokens):
    end = log[-max(1, len(log) // 10) :]
    if abs(np.mean([r["loss"] for r in end]) - math.log(2)) < 0.01:
        return "not learning"
    chosen = np.mean([r["chosen_gain"] for r in end])
    return "collapse" if chosen / tokens < -0.5 else "healthy"
""",
        # nats of an answer, whatever its length
        """
def diagnose(log, tokens):
    end = log[-max(1, len(log) // 10) :]
    if abs(np.mean([r["loss"] for r in end]) - math.log(2)) < 0.01:
        return "not learning"
    return "collapse" if np.mean([r["chosen_gain"] for r in end]) < -2.5 else "healthy"
""",
    ],
    ("05_grpo", "smallest_group"): [
        # forgets groups that are all right
        """
def smallest_group(p, goal):
    group = 2
    while 1 - (1 - p) ** group < goal:
        group += 1
    return group
""",
        # strictly more
        """
def smallest_group(p, goal):
    group = 2
    while 1 - p**group - (1 - p) ** group <= goal:
        group += 1
    return group
""",
        # powers of two
        """
def smallest_group(p, goal):
    group = 2
    while 1 - p**group - (1 - p) ** group < goal:
        group *= 2
    return group
""",
    ],
    ("05_grpo", "pass_at_k"): [
        # puts every answer back
        """
def pass_at_k(n, c, k):
    return 1 - (1 - c / n) ** k
""",
        # one right answer is enough
        """
def pass_at_k(n, c, k):
    return float(c > 0)
""",
        # the share of tries that are right
        """
def pass_at_k(n, c, k):
    return min(1.0, k * c / n)
""",
    ],
    ("05_grpo", "judge"): [
        # looks for the number somewhere
        """
def judge(a, b, text, end):
    return float(f"{a + b:04d}"[::-1] in text)
""",
        # reads it as a number
        """
def judge(a, b, text, end):
    digits = text.rstrip(end)[::-1]
    return float(digits.isdigit() and int(digits) == a + b)
""",
        # at least as large
        """
def judge(a, b, text, end):
    digits = text[:-1][::-1]
    return float(len(text) == 5 and digits.isdigit() and int(digits) >= a + b)
""",
    ],
    ("06_talk", "wins_needed"): [
        # one side only
        """
def wins_needed(chance):
    n = 1
    while 1 / 2**n >= chance:
        n += 1
    return n
""",
        # at most instead of below
        """
def wins_needed(chance):
    n = 1
    while 2 / 2**n > chance:
        n += 1
    return n
""",
        # one too many
        """
def wins_needed(chance):
    n = 1
    while 2 / 2**n >= chance:
        n += 1
    return n + 1
""",
    ],
    ("06_talk", "chance_to_see"): [
        # one side only
        """
def chance_to_see(share, n, p, sign_test):
    tails = [sum(math.comb(n, j) for j in range(k, n + 1)) / 2**n for k in range(n + 1)]
    seen = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    return sum(chance for chance, tail in zip(seen, tails) if tail < p)
""",
        # counts what convinces of the other model, too
        """
def chance_to_see(share, n, p, sign_test):
    seen = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    return sum(chance for k, chance in enumerate(seen) if sign_test(k, n - k) < p)
""",
        # at most instead of below
        """
def chance_to_see(share, n, p, sign_test):
    ahead = range(n // 2 + 1, n + 1)
    seen = {k: math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in ahead}
    return sum(seen[k] for k in ahead if sign_test(k, n - k) <= p)
""",
    ],
    ("06_talk", "asked_twice"): [
        # forgets to turn the second verdict round
        """
def asked_twice(forth, back):
    wins = sum(x == y == 1 for x, y in zip(forth, back))
    losses = sum(x == y == -1 for x, y in zip(forth, back))
    return wins, losses, sum(x == -y != 0 for x, y in zip(forth, back)) / len(forth)
""",
        # a win in one order counts
        """
def asked_twice(forth, back):
    pairs = [(x, -y) for x, y in zip(forth, back)]
    wins = sum(1 in pair for pair in pairs)
    losses = sum(-1 in pair for pair in pairs)
    return wins, losses, sum(x == -y != 0 for x, y in pairs) / len(forth)
""",
        # two ties are taken for the same place
        """
def asked_twice(forth, back):
    wins = sum(x == 1 and y == -1 for x, y in zip(forth, back))
    losses = sum(x == -1 and y == 1 for x, y in zip(forth, back))
    return wins, losses, sum(x == y for x, y in zip(forth, back)) / len(forth)
""",
    ],
    ("07_forensics", "meetings"): [
        """
def meetings(n, copies, windows):
    return copies * windows / n, (1 - windows / n) ** copies
""",
        """
def meetings(n, copies, windows):
    never = 1.0
    for i in range(copies):
        never *= (n - windows - i) / (n - i)
    return copies * windows / n, never
""",
        """
def meetings(n, copies, windows):
    mean = copies * min(windows, n) / n
    return mean, float(windows == 0)
""",
    ],
    ("more_evidence", "longest_copy"): [
        """
def longest_copy(text, corpus, order):
    return len(text), corpus.count(text)
""",
        # only passages at the beginning of the text
        """
def longest_copy(text, corpus, order):
    best = 0
    while best < len(text) and text[: best + 1] in corpus:
        best += 1
    return best, corpus.count(text[:best])
""",
        # bytes.count leaves out those that overlap
        """
def longest_copy(text, corpus, order):
    for length in range(len(text), 0, -1):
        for start in range(len(text) - length + 1):
            if text[start : start + length] in corpus:
                return length, corpus.count(text[start : start + length])
    return 0, 0
""",
    ],
    ("08_growing", "wider_norm"): [
        """
def wider_norm(gain, eps, width):
    return gain + [1.0] * (width - len(gain)), eps
""",
        # epsilon forgotten
        """
def wider_norm(gain, eps, width):
    share = len(gain) / width
    return [g * share**0.5 for g in gain] + [0.0] * (width - len(gain)), eps
""",
        # upside down
        """
def wider_norm(gain, eps, width):
    share = width / len(gain)
    return [g * share**0.5 for g in gain] + [1.0] * (width - len(gain)), eps * share
""",
    ],
    ("08_growing", "spread"): [
        """
def spread(old, new):
    return list(range(old))
""",
        # the last one is not the last
        """
def spread(old, new):
    return [i * new // old for i in range(old)]
""",
        # all of what is new in front
        """
def spread(old, new):
    return list(range(new - old, new))
""",
    ],
    ("08_growing", "more_units"): [
        # two silent factors: dead for ever
        """
def more_units(gate, up, down, new):
    d = gate.shape[1]
    gate = torch.cat([gate, torch.randn(new, d)])
    up = torch.cat([up, torch.zeros(new, d)])
    return gate, up, torch.cat([down, torch.zeros(d, new)], dim=1)
""",
        # none is silent
        """
def more_units(gate, up, down, new):
    d = gate.shape[1]
    gate = torch.cat([gate, torch.randn(new, d)])
    up = torch.cat([up, torch.randn(new, d)])
    return gate, up, torch.cat([down, torch.randn(d, new)], dim=1)
""",
        # one unit twice
        """
def more_units(gate, up, down, new):
    d = gate.shape[1]
    gate = torch.cat([gate, torch.ones(new, d)])
    up = torch.cat([up, torch.ones(new, d)])
    return gate, up, torch.cat([down, torch.zeros(d, new)], dim=1)
""",
        # the old ones again, at half their weight
        """
def more_units(gate, up, down, new):
    gate = torch.cat([gate, gate[:new]])
    up = torch.cat([up, up[:new]])
    down = torch.cat([down, down[:, :new]], dim=1).clone()
    down[:, :new] /= 2
    down[:, -new:] /= 2
    return gate, up, down
""",
    ],
    ("07_forensics", "leak_alarm"): [
        # exact copies alone
        """
def leak_alarm(questions, texts, clean):
    return [any(question in text for question in questions) for text in texts]
""",
        # a fixed limit, no control
        """
def leak_alarm(questions, texts, clean):
    def overlap(question, text):
        windows = [question[n : n + 4] for n in range(len(question) - 3)]
        return sum(w in text for w in windows) / len(windows)

    return [max(overlap(q, text) for q in questions) > 0.5 for text in texts]
""",
        # a clean text sets the alarm off
        """
def leak_alarm(questions, texts, clean):
    def highest(text):
        overlaps = []
        for question in questions:
            windows = [question[n : n + 4] for n in range(len(question) - 3)]
            overlaps.append(sum(w in text for w in windows) / len(windows))
        return max(overlaps)

    limit = max(map(highest, clean))
    return [highest(text) >= limit for text in texts]
""",
    ],
    ("a_reward_at_school", "blind_guess"): [
        # looks at the exam
        """
def blind_guess(lessons, exam):
    answer = max(set(exam), key=exam.count)
    share = exam.count(answer) / len(exam)
    return answer, share, math.sqrt(share * (1 - share) / len(exam))
""",
        # the share of the lessons
        """
def blind_guess(lessons, exam):
    answer = max(set(lessons), key=lessons.count)
    share = lessons.count(answer) / len(lessons)
    return answer, share, math.sqrt(share * (1 - share) / len(lessons))
""",
        # the spread of one question
        """
def blind_guess(lessons, exam):
    answer = max(set(lessons), key=lessons.count)
    share = exam.count(answer) / len(exam)
    return answer, share, math.sqrt(share * (1 - share))
""",
    ],
    ("a_reward_at_school", "questions_of"): [
        # dice that remember what was asked before
        """
def questions_of(step, size, n, seed):
    return np.random.randint(0, n, size).tolist()
""",
        # a sum: seed and step can be exchanged
        """
def questions_of(step, size, n, seed):
    return np.random.default_rng(seed + step).integers(0, n, size).tolist()
""",
        # every step asks the same
        """
def questions_of(step, size, n, seed):
    return np.random.default_rng(seed).integers(0, n, size).tolist()
""",
    ],
    ("benchmarks_that_can_fall", "likeliest"): [
        # the likeliest as a whole: short answers win
        """
def likeliest(logprobs, texts):
    return max(range(len(texts)), key=lambda n: logprobs[n])
""",
        # the least likely per character
        """
def likeliest(logprobs, texts):
    return min(range(len(texts)), key=lambda n: logprobs[n] / len(texts[n]))
""",
        # multiplied
        """
def likeliest(logprobs, texts):
    return max(range(len(texts)), key=lambda n: logprobs[n] * len(texts[n]))
""",
    ],
    ("benchmarks_that_can_fall", "is_chance"): [
        # four answers everywhere
        """
def is_chance(right, choices):
    error = (0.25 * 0.75 / len(right)) ** 0.5
    return abs(sum(right) / len(right) - 0.25) <= 2 * error
""",
        # only above
        """
def is_chance(right, choices):
    p = [1 / n for n in choices]
    error = sum(x * (1 - x) for x in p) ** 0.5 / len(p)
    return sum(right) / len(right) - sum(p) / len(p) <= 2 * error
""",
        # one standard error
        """
def is_chance(right, choices):
    p = [1 / n for n in choices]
    error = sum(x * (1 - x) for x in p) ** 0.5 / len(p)
    return abs(sum(right) / len(right) - sum(p) / len(p)) <= error
""",
    ],
    ("what_a_preference_teaches", "win_share"): [
        # a tie counts as a loss
        """
def win_share(better, worse):
    won = [float(a > b) for a, b in zip(better, worse)]
    return float(np.mean(won)), float(np.std(won) / math.sqrt(len(won)))
""",
        # the error of a coin with that share
        """
def win_share(better, worse):
    p = float(np.mean([(a > b) + 0.5 * (a == b) for a, b in zip(better, worse)]))
    return p, math.sqrt(p * (1 - p) / len(better))
""",
        # the deviation of one result, not of the mean
        """
def win_share(better, worse):
    won = [(a > b) + 0.5 * (a == b) for a, b in zip(better, worse)]
    return float(np.mean(won)), float(np.std(won))
""",
    ],
    ("what_a_preference_teaches", "reads_question"): [
        # more than half is enough
        """
def reads_question(judge, questions, answers):
    foreign = answers[1:] + answers[:1]
    won = [
        (judge(q, a) > judge(q, b)) + 0.5 * (judge(q, a) == judge(q, b))
        for q, a, b in zip(questions, answers, foreign)
    ]
    return bool(np.mean(won) > 0.5)
""",
        # ties are losses
        """
def reads_question(judge, questions, answers):
    foreign = answers[1:] + answers[:1]
    won = [float(judge(q, a) > judge(q, b)) for q, a, b in zip(questions, answers, foreign)]
    return bool(np.mean(won) > 0.5 + 3 * np.std(won) / math.sqrt(len(won)))
""",
        # a fixed margin, however few questions
        """
def reads_question(judge, questions, answers):
    foreign = answers[1:] + answers[:1]
    won = [
        (judge(q, a) > judge(q, b)) + 0.5 * (judge(q, a) == judge(q, b))
        for q, a, b in zip(questions, answers, foreign)
    ]
    return bool(np.mean(won) > 0.6)
""",
    ],
    ("more_evidence", "prime_suspect"): [
        # the highest mean, however few its steps
        """
def prime_suspect(read_at, unexplained):
    rests = {}
    for names, rest in zip(read_at, unexplained):
        for name in set(names):
            rests.setdefault(name, []).append(rest)
    return max(rests, key=lambda name: np.mean(rests[name]))
""",
        # the highest sum, however many its steps
        """
def prime_suspect(read_at, unexplained):
    rests = {}
    for names, rest in zip(read_at, unexplained):
        for name in set(names):
            rests.setdefault(name, []).append(rest)
    return max(rests, key=lambda name: sum(rests[name]))
""",
        # a page that a step read twice counts twice
        """
def prime_suspect(read_at, unexplained):
    rests = {}
    for names, rest in zip(read_at, unexplained):
        for name in names:
            rests.setdefault(name, []).append(rest)
    return max(rests, key=lambda name: np.mean(rests[name]) * len(rests[name]) ** 0.5)
""",
    ],
    ("two_rounds", "read_answer"): [
        # two calls are taken for one
        """
def read_answer(text):
    calls = re.findall(r"<call>(.*)</call><result>(.*)</result>", text)
    return calls, re.sub(r"<(think|call|result)>.*</\\1>", "", text)
""",
        # the scratchpad is left for the visitor
        """
def read_answer(text):
    calls = re.findall(r"<call>(.*?)</call><result>(.*?)</result>", text)
    return calls, re.sub(r"<(call|result)>.*?</\\1>", "", text)
""",
        # the last call alone
        """
def read_answer(text):
    calls = re.findall(r"<call>(.*?)</call><result>(.*?)</result>", text)
    return calls[-1:], re.sub(r"<(think|call|result)>.*?</\\1>", "", text)
""",
    ],
    ("two_rounds", "dearest"): [
        # beside the model before, with no control
        """
def dearest(before, after, control):
    cost = {name: before[name] - after[name] for name in after}
    name = max(cost, key=cost.get)
    return name, cost[name]
""",
        # the largest change, up or down
        """
def dearest(before, after, control):
    cost = {name: control[name] - after[name] for name in after}
    name = max(cost, key=lambda n: abs(cost[n]))
    return name, cost[name]
""",
        # what was won, not what was paid
        """
def dearest(before, after, control):
    won = {name: after[name] - control[name] for name in after}
    name = max(won, key=won.get)
    return name, won[name]
""",
    ],
    ("what_dpo_lacks", "endless_loss"): [
        # the favourite's verdict alone
        """
def endless_loss(now_a, now_b, then_a, then_b, p, beta):
    margin = beta * ((now_a - then_a) - (now_b - then_b))
    return p * math.log(1 + math.exp(-margin))
""",
        # one verdict, by majority
        """
def endless_loss(now_a, now_b, then_a, then_b, p, beta):
    margin = beta * ((now_a - then_a) - (now_b - then_b))
    return math.log(1 + math.exp(-margin if p >= 0.5 else margin))
""",
        # without the reference
        """
def endless_loss(now_a, now_b, then_a, then_b, p, beta):
    margin = beta * (now_a - now_b)
    return p * math.log(1 + math.exp(-margin)) + (1 - p) * math.log(1 + math.exp(margin))
""",
    ],
    ("what_dpo_lacks", "split_gap"): [
        # weighed by what the closed form gives
        """
def split_gap(right, known, wanted, wanted_known):
    among = wanted_known * (wanted / wanted_known - right / known)
    return among, wanted - right - among
""",
        # not weighed
        """
def split_gap(right, known, wanted, wanted_known):
    among = wanted / wanted_known - right / known
    return among, wanted - right - among
""",
        # the two parts exchanged
        """
def split_gap(right, known, wanted, wanted_known):
    among = known * (wanted / wanted_known - right / known)
    return wanted - right - among, among
""",
    ],
    ("which_method", "clip_share"): [
        # whatever is far from 1, in both directions
        """
def clip_share(ratio_n, advantage_n, clip=0.2):
    return ((ratio_n - 1).abs() > clip).float().mean()
""",
        # only what should become likelier
        """
def clip_share(ratio_n, advantage_n, clip=0.2):
    return ((ratio_n > 1 + clip) & (advantage_n > 0)).float().mean()
""",
        # the clip is a constant
        """
def clip_share(ratio_n, advantage_n, clip=0.2):
    cut_n = (ratio_n > 1.2) & (advantage_n > 0) | (ratio_n < 0.8) & (advantage_n < 0)
    return cut_n.float().mean()
""",
        # the sign the other way round
        """
def clip_share(ratio_n, advantage_n, clip=0.2):
    cut_n = (ratio_n > 1 + clip) & (advantage_n < 0) | (ratio_n < 1 - clip) & (advantage_n > 0)
    return cut_n.float().mean()
""",
    ],
    ("which_method", "distillation_loss"): [
        # weighed by the teacher
        """
def distillation_loss(student_tv, teacher_tv, asked_t):
    return (teacher_tv * (teacher_tv / student_tv).log()).sum(-1)[asked_t].sum()
""",
        # every token
        """
def distillation_loss(student_tv, teacher_tv, asked_t):
    return (student_tv * (student_tv / teacher_tv).log()).sum()
""",
        # the mean of the tokens
        """
def distillation_loss(student_tv, teacher_tv, asked_t):
    return (student_tv * (student_tv / teacher_tv).log()).sum(-1)[asked_t].mean()
""",
        # the cross-entropy: it is not 0 at the teacher
        """
def distillation_loss(student_tv, teacher_tv, asked_t):
    return -(student_tv * teacher_tv.log()).sum(-1)[asked_t].sum()
""",
    ],
}
PAGES = {path.stem: path for path in CHAPTERS}
CASES = [
    pytest.param(
        chapter,
        name,
        answer,
        id=f"{chapter}-{name}-{n}",
        marks=pytest.mark.full if n > 1 else (),
    )
    for (chapter, name), answers in WRONG.items()
    if chapter in PAGES
    for n, answer in enumerate(answers, 1)
]


@pytest.mark.parametrize("chapter, name, answer", CASES)
def test_a_wrong_answer_fails_with_words(chapter, name, answer):
    space = namespace(PAGES[chapter])
    exec(answer, space)
    if "torch" in space:
        space["torch"].manual_seed(0)
    with pytest.raises(AssertionError) as e:
        exec(exercises(PAGES[chapter])[1][name], space)
    assert len(str(e.value)) > 15


def test_three_wrong_answers_for_each_exercise():
    "Of season 3, and of the chapters written again"
    done = {chapter for chapter, _ in WRONG}
    for path in CHAPTERS:
        if "season3" in path.parts or path.stem in done:
            for name in exercises(path)[0]:
                assert len(WRONG.get((path.stem, name), [])) >= 3, f"{path.stem}: {name}"
