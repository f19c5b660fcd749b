"""Wrong answers to the checks of the pages on data, chapter 2 of season 1 and its deeper pages:
shortcuts and usual mistakes."""

# the true way, with one thing changed
LEARNED = """
            def learned(words, n, tie=min, least=2):
                split = {tuple(word): times for word, times in words.items()}
                merges = []
                while len(merges) < n:
                    pairs = Counter()
                    for word, times in split.items():
                        for pair in zip(word, word[1:]):
                            pairs[pair] += times
                    most = max(pairs.values(), default=0)
                    if most < least:
                        break
                    merges.append(tie([pair for pair in pairs if pairs[pair] == most]))
                    new = {}
                    for word, times in split.items():
                        out, i = (), 0
                        while i < len(word):
                            step = 2 if word[i : i + 2] == merges[-1] else 1
                            out, i = (*out, "".join(word[i : i + step])), i + step
                        new[out] = times
                    split = new
                return merges"""

WRONG = {
    "keep_likely": {
        "the share itself is the bar": """
            def keep_likely(probs, share):
                kept = torch.where(probs >= share, probs, 0.0)
                return kept / kept.sum()""",
        "not scaled": """
            def keep_likely(probs, share):
                return torch.where(probs >= share * probs.max(), probs, 0.0)""",
        "above the bar": """
            def keep_likely(probs, share):
                kept = torch.where(probs > share * probs.max(), probs, 0.0)
                return kept / kept.sum()""",
        "the first is the largest": """
            def keep_likely(probs, share):
                kept = torch.where(probs >= share * probs[0], probs, 0.0)
                return kept / kept.sum()""",
        "in place": """
            def keep_likely(probs, share):
                probs[probs < share * probs.max()] = 0
                return probs / probs.sum()""",
    },
    "merge_pair": {
        "the first pair alone": """
            def merge_pair(tokens, pair):
                for i in range(len(tokens) - 1):
                    if tuple(tokens[i : i + 2]) == pair:
                        return tokens[:i] + ["".join(pair)] + tokens[i + 2 :]
                return tokens""",
        "overlapping pairs": """
            def merge_pair(tokens, pair):
                out = []
                for i, token in enumerate(tokens):
                    if tuple(tokens[i : i + 2]) == pair:
                        out.append("".join(pair))
                    elif i == 0 or tuple(tokens[i - 1 : i + 1]) != pair:
                        out.append(token)
                return out""",
        "either order": """
            def merge_pair(tokens, pair):
                out, i = [], 0
                while i < len(tokens):
                    step = 2 if sorted(tokens[i : i + 2]) == sorted(pair) else 1
                    out.append("".join(tokens[i : i + step]))
                    i += step
                return out""",
        "by their letters": """
            def merge_pair(tokens, pair):
                out, i = [], 0
                while i < len(tokens):
                    step = 2 if "".join(tokens[i : i + 2]) == "".join(pair) else 1
                    out.append("".join(tokens[i : i + step]))
                    i += step
                return out""",
        "in place": """
            def merge_pair(tokens, pair):
                i = 0
                while i < len(tokens) - 1:
                    if tuple(tokens[i : i + 2]) == pair:
                        tokens[i : i + 2] = ["".join(pair)]
                    i += 1
                return tokens""",
    },
    "learn_merges": {
        "each word once": """
            def learn_merges(words, n):
                return learned(dict.fromkeys(words, 1), n)
            """
        + LEARNED,
        "ties by what came first": """
            def learn_merges(words, n):
                return learned(words, n, tie=lambda tied: tied[0])
            """
        + LEARNED,
        "ties by what is last": """
            def learn_merges(words, n):
                return learned(words, n, tie=max)
            """
        + LEARNED,
        "counted once": """
            def learn_merges(words, n):
                pairs = Counter()
                for word, times in words.items():
                    for pair in zip(word, word[1:]):
                        pairs[pair] += times
                often = [pair for pair in pairs if pairs[pair] > 1]
                return sorted(often, key=lambda pair: (-pairs[pair], pair))[:n]""",
        "does not stop": """
            def learn_merges(words, n):
                return learned(words, n, least=1)
            """
        + LEARNED,
        "as many as there are": """
            def learn_merges(words, n):
                return learned(words, 99)
            """
        + LEARNED,
        "across words": """
            def learn_merges(words, n):
                return learned({"".join(word * times for word, times in words.items()): 1}, n)
            """
        + LEARNED,
    },
    "encode_word": {
        "letters": """
            def encode_word(word, vocabulary, merges):
                return [vocabulary[letter] for letter in word]""",
        "the longest token first": """
            def encode_word(word, vocabulary, merges):
                ids = []
                while word:
                    n = max(n for n in range(1, len(word) + 1) if word[:n] in vocabulary)
                    ids.append(vocabulary[word[:n]])
                    word = word[n:]
                return ids""",
        "the last merge first": """
            def encode_word(word, vocabulary, merges):
                tokens = list(word)
                for a, b in reversed(merges):
                    tokens = "|".join(tokens).replace(f"{a}|{b}", a + b).split("|")
                return [vocabulary[token] for token in tokens if token]""",
        "the merges in the order of the word": """
            def encode_word(word, vocabulary, merges):
                tokens, again = list(word), True
                while again:
                    again = False
                    for i in range(len(tokens) - 1):
                        if tuple(tokens[i : i + 2]) in merges:
                            tokens[i : i + 2] = ["".join(tokens[i : i + 2])]
                            again = True
                            break
                return [vocabulary[token] for token in tokens]""",
        "one pair a merge": """
            def encode_word(word, vocabulary, merges):
                tokens = list(word)
                for pair in merges:
                    for i in range(len(tokens) - 1):
                        if tuple(tokens[i : i + 2]) == pair:
                            tokens[i : i + 2] = ["".join(pair)]
                            break
                return [vocabulary[token] for token in tokens]""",
    },
    "nats_per_char": {
        "a mean of ratios": """
            def nats_per_char(losses, pieces):
                return sum(l / len(p) for l, p in zip(losses, pieces)) / len(pieces)""",
        "per piece": "def nats_per_char(losses, pieces):\n    return sum(losses) / len(pieces)",
        "bytes": """
            def nats_per_char(losses, pieces):
                return sum(losses) / sum(len(p.encode()) for p in pieces)""",
        "always two letters": """
            def nats_per_char(losses, pieces):
                return sum(losses) / len(losses) / 2""",
    },
    "without_copies": {
        "compared with all that came before": """
            def without_copies(documents, threshold):
                bags = [set(d.split()) for d in documents]
                return [d for i, d in enumerate(documents)
                        if not any(len(bags[i] & b) / len(bags[i] | b) > threshold
                                   for b in bags[:i])]""",
        "equal ones only": """
            def without_copies(documents, threshold):
                return list(dict.fromkeys(documents))""",
        "the last one stays": """
            def without_copies(documents, threshold):
                kept = []
                for d in reversed(documents):
                    a = set(d.split())
                    if not any(len(a & set(o.split())) / len(a | set(o.split())) > threshold
                               for o in kept):
                        kept.insert(0, d)
                return kept""",
        "at the threshold": """
            def without_copies(documents, threshold):
                kept = []
                for d in documents:
                    a = set(d.split())
                    if all(len(a & set(o.split())) / len(a | set(o.split())) < threshold
                           for o in kept):
                        kept.append(d)
                return kept""",
        "over the smaller one": """
            def without_copies(documents, threshold):
                kept = []
                for d in documents:
                    a = set(d.split())
                    if not any(len(a & set(o.split())) / min(len(a), len(set(o.split())))
                               > threshold for o in kept):
                        kept.append(d)
                return kept""",
        "words counted as often as they come": """
            def without_copies(documents, threshold):
                def likeness(a, b):
                    a, b = a.split(), b.split()
                    common = sum(w in b for w in a)
                    return common / (len(a) + len(b) - common)
                kept = []
                for d in documents:
                    if not any(likeness(o, d) > threshold for o in kept):
                        kept.append(d)
                return kept""",
        "letters": """
            def without_copies(documents, threshold):
                kept = []
                for d in documents:
                    a = set(d)
                    if not any(len(a & set(o)) / len(a | set(o)) > threshold for o in kept):
                        kept.append(d)
                return kept""",
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
