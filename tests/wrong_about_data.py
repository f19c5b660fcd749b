"""Wrong answers to the checks of the pages on data, chapter 2 of season 1 and its deeper pages:
shortcuts and usual mistakes."""

WRONG = {
    "join_pair": {
        "letters instead of tokens": """
            def join_pair(tokens, pair):
                joined = "".join(pair)
                cut = "".join(tokens).replace(joined, f"|{joined}|").split("|")
                out = []
                for piece in cut:
                    out += [piece] if piece == joined else list(piece)
                return out""",
        "in place": """
            def join_pair(tokens, pair):
                i = 0
                while i + 1 < len(tokens):
                    if (tokens[i], tokens[i + 1]) == pair:
                        tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]
                    i += 1
                return tokens""",
        "only the first": """
            def join_pair(tokens, pair):
                for i in range(len(tokens) - 1):
                    if (tokens[i], tokens[i + 1]) == pair:
                        return [*tokens[:i], "".join(pair), *tokens[i + 2 :]]
                return list(tokens)""",
        "letters used twice": """
            def join_pair(tokens, pair):
                out = []
                for i, token in enumerate(tokens):
                    if tuple(tokens[i : i + 2]) == pair:
                        out.append("".join(pair))
                    elif i == 0 or (tokens[i - 1], token) != pair:
                        out.append(token)
                return out""",
        "from the right": """
            def join_pair(tokens, pair):
                out, left = [], list(tokens)
                while left:
                    if tuple(left[-2:]) == pair:
                        out.insert(0, left[-2] + left[-1])
                        del left[-2:]
                    else:
                        out.insert(0, left.pop())
                return out""",
    },
    "cut_word": {
        "the longest first": """
            def cut_word(word, merges):
                known = {a + b for a, b in merges} | set(word)
                out = []
                while word:
                    n = max(n for n in range(1, len(word) + 1) if word[:n] in known)
                    out.append(word[:n])
                    word = word[n:]
                return out""",
        "from the last merge to the first": """
            def cut_word(word, merges):
                tokens = list(word)
                for pair in reversed(merges):
                    out = []
                    for token in tokens:
                        if out and (out[-1], token) == pair:
                            out[-1] += token
                        else:
                            out.append(token)
                    tokens = out
                return tokens""",
        "until nothing changes": """
            def cut_word(word, merges):
                tokens = list(word)
                for _ in range(9):
                    for pair in merges:
                        out = []
                        for token in tokens:
                            if out and (out[-1], token) == pair:
                                out[-1] += token
                            else:
                                out.append(token)
                        tokens = out
                return tokens""",
        "whatever fits first": """
            def cut_word(word, merges):
                out = []
                for letter in word:
                    out.append(letter)
                    while len(out) > 1 and (out[-2], out[-1]) in merges:
                        out[-2:] = [out[-2] + out[-1]]
                return out""",
    },
    "warm": {
        "the probabilities are divided": """
            def warm(scores, temperature):
                p = scores.softmax(-1) / max(temperature, 1e-9)
                return p / p.sum()""",
        "upside down": """
            def warm(scores, temperature):
                return (scores * temperature).softmax(-1)""",
        "no branch for zero": """
            def warm(scores, temperature):
                return (scores / temperature).softmax(-1)""",
        "exponentials by hand": """
            def warm(scores, temperature):
                if temperature == 0:
                    return (scores == scores.max()).float()
                p = (scores / temperature).exp()
                return p / p.sum()""",
    },
    "nats_per_letter": {
        "a mean of ratios": """
            def nats_per_letter(losses, pieces):
                return sum(l / len(p) for l, p in zip(losses, pieces)) / len(pieces)""",
        "per piece": "def nats_per_letter(losses, pieces):\n    return sum(losses) / len(pieces)",
        "bytes": """
            def nats_per_letter(losses, pieces):
                return sum(losses) / sum(len(p.encode()) for p in pieces)""",
        "always two letters": """
            def nats_per_letter(losses, pieces):
                return sum(losses) / len(losses) / 2""",
    },
    "mistakes": {
        "both dropped": """
            def mistakes(good, bad, limit):
                return (sum(x > limit for x in good) / len(good),
                        sum(x > limit for x in bad) / len(bad))""",
        "at the limit": """
            def mistakes(good, bad, limit):
                return (sum(x >= limit for x in good) / len(good),
                        sum(x < limit for x in bad) / len(bad))""",
        "of all": """
            def mistakes(good, bad, limit):
                n = len(good) + len(bad)
                return sum(x > limit for x in good) / n, sum(x <= limit for x in bad) / n""",
    },
    "resemblance": {
        "runs counted as often as they come": """
            def resemblance(a, b, n):
                def runs(t):
                    w = t.lower().split()
                    return [tuple(w[i:i + n]) for i in range(max(1, len(w) - n + 1))]
                a, b = runs(a), runs(b)
                common = sum(r in b for r in a)
                return common / (len(a) + len(b) - common)""",
        "over the smaller one": """
            def resemblance(a, b, n):
                def runs(t):
                    w = t.lower().split()
                    return {tuple(w[i:i + n]) for i in range(max(1, len(w) - n + 1))}
                a, b = runs(a), runs(b)
                return len(a & b) / min(len(a), len(b))""",
        "capitals differ": """
            def resemblance(a, b, n):
                def runs(t):
                    w = t.split()
                    return {tuple(w[i:i + n]) for i in range(max(1, len(w) - n + 1))}
                a, b = runs(a), runs(b)
                return len(a & b) / len(a | b)""",
        "short texts have no run": """
            def resemblance(a, b, n):
                def runs(t):
                    w = t.lower().split()
                    return {tuple(w[i:i + n]) for i in range(len(w) - n + 1)}
                a, b = runs(a), runs(b)
                return len(a & b) / max(1, len(a | b))""",
        "order does not matter": """
            def resemblance(a, b, n):
                def runs(t):
                    w = t.lower().split()
                    return {frozenset(w[i:i + n]) for i in range(max(1, len(w) - n + 1))}
                a, b = runs(a), runs(b)
                return len(a & b) / len(a | b)""",
    },
    "meet": {
        "all bands": """
            def meet(similarity, bands, size):
                return similarity ** (bands * size)""",
        "any number of a band": """
            def meet(similarity, bands, size):
                return 1 - (1 - similarity) ** (bands * size)""",
        "added up": """
            def meet(similarity, bands, size):
                return min(1, bands * similarity ** size)""",
        "the two changed": """
            def meet(similarity, bands, size):
                return 1 - (1 - similarity ** bands) ** size""",
    },
    "shares_run": {
        "as it is written": """
            def shares_run(page, question, n):
                return question.lower().strip("?") in page.lower()""",
        "any words": """
            def shares_run(page, question, n):
                a, b = (re.findall(r"\\w+", t.lower()) for t in (page, question))
                return len(set(a) & set(b)) >= n""",
        "parts of words": """
            def shares_run(page, question, n):
                words = re.findall(r"\\w+", question.lower())
                plain = " ".join(re.findall(r"\\w+", page.lower()))
                starts = range(len(words) - n + 1)
                return any(" ".join(words[i : i + n]) in plain for i in starts)""",
        "a short question is one run": """
            def shares_run(page, question, n):
                def runs(t):
                    w = re.findall(r"\\w+", t.lower())
                    return {tuple(w[i : i + n]) for i in range(max(1, len(w) - n + 1))}
                return bool(runs(page) & runs(question))""",
        "always": "def shares_run(page, question, n):\n    return True",
    },
    "judge_search": {
        "changed over": """
            def judge_search(planted, found):
                hits = len(planted & found)
                return hits / max(1, len(found)), hits / len(planted)""",
        "an empty search is worth nothing": """
            def judge_search(planted, found):
                hits = len(planted & found)
                return hits / len(planted), hits / max(1, len(found))""",
        "over all": """
            def judge_search(planted, found):
                share = len(planted & found) / len(planted | found)
                return share, share""",
    },
    "document_numbers": {
        "the end opens the next": """
            def document_numbers(ids, end):
                out, number = [], 0
                for i in ids:
                    number += i == end
                    out.append(number)
                return out""",
        "zero ends": """
            def document_numbers(ids, end):
                out, number = [], 0
                for i in ids:
                    out.append(number)
                    number += i == 0
                return out""",
        "no empty documents": """
            def document_numbers(ids, end):
                out, number = [], 0
                for at, i in enumerate(ids):
                    out.append(number)
                    number += i == end and at > 0
                return out""",
    },
    "allowed_pairs": {
        "without itself": """
            def allowed_pairs(documents):
                sizes = [documents.count(d) for d in set(documents)]
                return sum(n * (n - 1) // 2 for n in sizes)""",
        "causal only": """
            def allowed_pairs(documents):
                return len(documents) * (len(documents) + 1) // 2""",
        "both ways": """
            def allowed_pairs(documents):
                return sum(documents.count(d) ** 2 for d in set(documents))""",
    },
}
