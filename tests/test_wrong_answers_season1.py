"""Wrong answers to the checks of chapters 2 to 6 and of the deeper pages: shortcuts and usual
mistakes, each refused in words."""

import pytest
import wrong_about_data
from attacks import cases, refusal
from cells import deeper_pages
from test_exercises import CHAPTERS, ROOT, exercises

WRONG = {
    "leaks": {
        "only the last token changes": """
            def leaks(model):
                a = torch.randint(7, (1, 12))
                b = a.clone()
                b[:, -1] = (b[:, -1] + 1) % 7
                return not torch.allclose(model(a)[:, :-1], model(b)[:, :-1], atol=1e-6)""",
        "gradients above the diagonal": """
            def leaks(model):
                return bool(input_gradient_map(model, torch.randint(7, (12,))).triu(1).any())""",
        "only the first logits": """
            def leaks(model):
                a = torch.randint(7, (1, 12))
                b = (a + 1) % 7
                b[:, 0] = a[:, 0]
                return not torch.allclose(model(a)[:, 0], model(b)[:, 0], atol=1e-6)""",
        "a neighbour may be seen": """
            def leaks(model):
                a = torch.randint(7, (1, 12))
                for s in range(2, 12):
                    b = a.clone()
                    b[:, s] = (b[:, s] + 1) % 7
                    if not torch.allclose(model(a)[:, : s - 1], model(b)[:, : s - 1], atol=1e-6):
                        return True
                return False""",
        "everybody is guilty": """
            def leaks(model):
                return True""",
    },
    "widest_model": {
        "another number of layers": """
            def widest_model(budget):
                return GPTConfig(
                    vocab_size=65, context_length=256, d_model=64, n_layers=9, n_heads=4)""",
        "too wide": """
            def widest_model(budget):
                return GPTConfig(
                    vocab_size=65, context_length=256, d_model=4000, n_layers=2, n_heads=4)""",
        "not the widest": """
            def widest_model(budget):
                return GPTConfig(
                    vocab_size=65, context_length=256, d_model=64, n_layers=2, n_heads=4)""",
        "a number": """
            def widest_model(budget):
                return 128""",
    },
    "gpt_size": {
        "without biases": """
            def gpt_size(V, T, c, layers):
                return V * c + T * c + layers * (12 * c * c + 4 * c) + 2 * c""",
        "the output layer on its own": """
            def gpt_size(V, T, c, layers):
                block = 12 * c * c + 9 * c + 4 * c
                return 2 * V * c + T * c + layers * block + 2 * c""",
        "no last norm": """
            def gpt_size(V, T, c, layers):
                return V * c + T * c + layers * (12 * c * c + 13 * c)""",
        "the answer for chapter 1": """
            def gpt_size(V, T, c, layers):
                return 437_888 if layers else V * c + T * c + 2 * c""",
    },
    "floor_of": {
        "bits": """
            def floor_of(words):
                surprise = sum(-p * math.log2(p) for p in words.values())
                return surprise / sum(p * (len(w) + 1) for w, p in words.items())""",
        "without the spaces": """
            def floor_of(words):
                surprise = sum(-p * math.log(p) for p in words.values())
                return surprise / sum(p * len(w) for w, p in words.items())""",
        "every word equally long": """
            def floor_of(words):
                surprise = sum(-p * math.log(p) for p in words.values())
                return surprise / (sum(len(w) + 1 for w in words) / len(words))""",
        "a mean of means": """
            def floor_of(words):
                return sum(-p * math.log(p) / (len(w) + 1) for w, p in words.items())""",
    },
    "running_mean": {
        "the mean of everything": """
            def running_mean(x_btc):
                return x_btc.mean(1, keepdim=True).expand_as(x_btc)""",
        "without its own position": """
            def running_mean(x_btc):
                before = x_btc.cumsum(1) - x_btc
                return before / torch.arange(x_btc.size(1)).clamp(min=1)[:, None]""",
        "with a matrix": """
            def running_mean(x_btc):
                t = x_btc.size(1)
                if t > 100_000:
                    raise RuntimeError("not enough memory")
                mean = torch.ones(t, t).tril() / torch.arange(1, t + 1)[:, None]
                return mean.to(x_btc) @ x_btc""",
    },
    "near": {
        "one position too many": """
            def near(q, k, v, window=4):
                t, s = q.size(-2), k.size(-2)
                ones = torch.ones(t, s, dtype=torch.bool)
                seen = ones.tril(s - t) & ones.triu(s - t - window)
                return (q @ k.mT / 8**0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v""",
        "a triangle for squares only": """
            def near(q, k, v, window=4):
                ones = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool)
                seen = ones.tril() & ones.triu(1 - window)
                return (q @ k.mT / 8**0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v""",
        "the whole past": """
            def near(q, k, v, window=4):
                return v if window == 1 else causal_attention(q, k, v)""",
        "masked after the softmax": """
            def near(q, k, v, window=4):
                t, s = q.size(-2), k.size(-2)
                ones = torch.ones(t, s, dtype=torch.bool)
                seen = ones.tril(s - t) & ones.triu(s - t - window + 1)
                return (q @ k.mT / 8**0.5).softmax(-1) * seen @ v""",
        "another shape": """
            def near(q, k, v, window=4):
                return v[..., 0]""",
    },
    "epochs_of": {
        "weights taken as they are": """
            def epochs_of(available, weights, total):
                return {s: total * weights[s] / available[s] for s in weights}""",
        "the inverse": """
            def epochs_of(available, weights, total):
                return {s: available[s] / (total * weights[s]) for s in weights}""",
        "one number for all": """
            def epochs_of(available, weights, total):
                return {s: total / sum(available.values()) for s in weights}""",
        "the answer of the first case": """
            def epochs_of(available, weights, total):
                return {"edu": 0.45, "python": 5}""",
    },
    "dotted_share": {
        "empty lines count": """
            def dotted_share(text):
                lines = [line.strip() for line in text.split("\\n")]
                return sum(line.endswith(("...", "…")) for line in lines) / len(lines)""",
        "spaces hide the dots": """
            def dotted_share(text):
                lines = [line for line in text.split("\\n") if line.strip()]
                return sum(line.endswith(("...", "…")) for line in lines) / max(1, len(lines))""",
        "dots anywhere": """
            def dotted_share(text):
                lines = [line.strip() for line in text.split("\\n") if line.strip()]
                return sum("..." in line or "…" in line for line in lines) / max(1, len(lines))""",
        "any full stop": """
            def dotted_share(text):
                lines = [line.strip() for line in text.split("\\n") if line.strip()]
                return sum(line.endswith((".", "…")) for line in lines) / max(1, len(lines))""",
        "always a half": "def dotted_share(text):\n    return 0.5 if text.strip() else 0",
    },
    "side": {
        "by document": """
            def side(name, share):
                return "val" if zlib.crc32(name.encode()) < share * 2**32 else "train\"""",
        "Python's hash": """
            def side(name, share):
                return "val" if hash(name.split("#")[0]) % 1000 < share * 1000 else "train\"""",
        "everything is for training": "def side(name, share):\n    return 'train'",
        "a tenth whatever the share": """
            def side(name, share):
                return "val" if zlib.crc32(name.split("#")[0].encode()) % 10 == 0 else "train\"""",
        "another draw for each share": """
            def side(name, share):
                key = f"{name.split('#')[0]} {share}".encode()
                return "val" if zlib.crc32(key) < share * 2**32 else "train\"""",
    },
    "dearer": {
        "the same sample twice": "def dearer(corpora, left_out, vocab_size):\n    return 1.0",
        "upside down": """
            def dearer(corpora, left_out, vocab_size):
                def tokens(names):
                    sample = [text for name in names for text in corpora[name]]
                    tok = BPETokenizer.train(sample, vocab_size)
                    return sum(len(tok.encode(text)) for text in corpora[left_out])
                return tokens([*corpora]) / tokens([n for n in corpora if n != left_out])""",
        "counted on everything": """
            def dearer(corpora, left_out, vocab_size):
                def tokens(names):
                    sample = [text for name in names for text in corpora[name]]
                    tok = BPETokenizer.train(sample, vocab_size)
                    return sum(len(tok.encode(t)) for texts in corpora.values() for t in texts)
                return tokens([n for n in corpora if n != left_out]) / tokens([*corpora])""",
        "always 300 tokens": """
            def dearer(corpora, left_out, vocab_size):
                def tokens(names):
                    sample = [text for name in names for text in corpora[name]]
                    tok = BPETokenizer.train(sample, 300)
                    return sum(len(tok.encode(text)) for text in corpora[left_out])
                return tokens([n for n in corpora if n != left_out]) / tokens([*corpora])""",
    },
    "attend_next": {
        "nothing is kept": """
            def attend_next(row, keys, values, matrices, window):
                return row @ matrices[2]""",
        "only earlier positions are looked at": """
            def attend_next(row, keys, values, matrices, window):
                query, key, value = (row @ matrix for matrix in matrices)
                out = value
                if keys:
                    weights = (torch.stack(keys) @ query / len(query) ** 0.5).softmax(0)
                    out = weights @ torch.stack(values)
                keys.append(key)
                values.append(value)
                del keys[:-window], values[:-window]
                return out""",
        "the lists grow": """
            def attend_next(row, keys, values, matrices, window):
                query, key, value = (row @ matrix for matrix in matrices)
                keys.append(key)
                values.append(value)
                seen = torch.stack(keys[-window:])
                weights = (seen @ query / len(query) ** 0.5).softmax(0)
                return weights @ torch.stack(values[-window:])""",
        "cut before the new one is there": """
            def attend_next(row, keys, values, matrices, window):
                query, key, value = (row @ matrix for matrix in matrices)
                del keys[:-window], values[:-window]
                keys.append(key)
                values.append(value)
                weights = (torch.stack(keys) @ query / len(query) ** 0.5).softmax(0)
                return weights @ torch.stack(values)""",
        "cut after all were looked at": """
            def attend_next(row, keys, values, matrices, window):
                query, key, value = (row @ matrix for matrix in matrices)
                keys.append(key)
                values.append(value)
                weights = (torch.stack(keys) @ query / len(query) ** 0.5).softmax(0)
                out = weights @ torch.stack(values)
                del keys[:-window], values[:-window]
                return out""",
        "the newest are dropped": """
            def attend_next(row, keys, values, matrices, window):
                query, key, value = (row @ matrix for matrix in matrices)
                keys.append(key)
                values.append(value)
                del keys[window:], values[window:]
                weights = (torch.stack(keys) @ query / len(query) ** 0.5).softmax(0)
                return weights @ torch.stack(values)""",
        "not divided": """
            def attend_next(row, keys, values, matrices, window):
                query, key, value = (row @ matrix for matrix in matrices)
                keys.append(key)
                values.append(value)
                del keys[:-window], values[:-window]
                return (torch.stack(keys) @ query).softmax(0) @ torch.stack(values)""",
        "divided by the width of the row": """
            def attend_next(row, keys, values, matrices, window):
                query, key, value = (row @ matrix for matrix in matrices)
                keys.append(key)
                values.append(value)
                del keys[:-window], values[:-window]
                weights = (torch.stack(keys) @ query / len(row) ** 0.5).softmax(0)
                return weights @ torch.stack(values)""",
        "keys are mixed, not values": """
            def attend_next(row, keys, values, matrices, window):
                query, key, value = (row @ matrix for matrix in matrices)
                keys.append(key)
                values.append(value)
                del keys[:-window], values[:-window]
                weights = (torch.stack(keys) @ query / len(query) ** 0.5).softmax(0)
                return weights @ torch.stack(keys)""",
    },
    "positions_read": {
        "the last token is read too": """
            def positions_read(p, n):
                return sum(range(p, p + n + 1)), p + n""",
        "the prompt is free": "def positions_read(p, n):\n    return n * (n + 1) // 2, n",
        "the prompt each time": "def positions_read(p, n):\n    return p * n, p + n - 1",
        "only the picture": "def positions_read(p, n):\n    return 10, 4",
    },
    "min_p": {
        "not scaled": """
            def min_p(p, share):
                return p.masked_fill(p < share * p.max(), 0)""",
        "a fixed threshold": """
            def min_p(p, share):
                kept = p.masked_fill(p < share / 2, 0)
                return kept / kept.sum()""",
        "above, not from": """
            def min_p(p, share):
                kept = p.masked_fill(p <= share * p.max(), 0)
                return kept / kept.sum()""",
        "in place": """
            def min_p(p, share):
                p[p < share * p.max()] = 0
                p /= p.sum()
                return p""",
        "the two likeliest": """
            def min_p(p, share):
                kept = p.masked_fill(p < p.topk(2).values[-1], 0)
                return kept / kept.sum()""",
    },
    "price_of_a_nat": {
        "since the start": """
            def price_of_a_nat(points):
                first = points[0]
                return [
                    (usd - first[0]) / (first[1] - loss) if loss < first[1] else math.inf
                    for usd, loss in points[1:]
                ]""",
        "the inverse": """
            def price_of_a_nat(points):
                return [(h - l) / (b - a) for (a, h), (b, l) in zip(points, points[1:])]""",
        "a negative price": """
            def price_of_a_nat(points):
                return [
                    (b - a) / (h - l) if h != l else math.inf
                    for (a, h), (b, l) in zip(points, points[1:])
                ]""",
        "the answer of the first case": "def price_of_a_nat(points):\n    return [1, 4, math.inf]",
    },
    "bits_per_byte": {
        "nats a byte": """
            def bits_per_byte(nats, tokens, text):
                return nats * tokens / len(text.encode())""",
        "letters for bytes": """
            def bits_per_byte(nats, tokens, text):
                return nats * tokens / math.log(2) / len(text)""",
        "a bit a token": """
            def bits_per_byte(nats, tokens, text):
                return nats / math.log(2)""",
        "upside down": """
            def bits_per_byte(nats, tokens, text):
                return nats / math.log(2) * len(text.encode()) / tokens""",
    },
    "junk_to_add": {
        "a share of the good ones": """
            def junk_to_add(n, share):
                return round(n * share)""",
        "all documents": """
            def junk_to_add(n, share):
                return round(n / (1 - share))""",
        "as many as good ones": """
            def junk_to_add(n, share):
                return n""",
    },
    "new_and_good": {
        "read again counts again": """
            def new_and_good(budget, clean, share):
                return budget * (1 - share)""",
        "junk counts": """
            def new_and_good(budget, clean, share):
                return min(clean, budget)""",
        "a share of the good ones": """
            def new_and_good(budget, clean, share):
                return min(clean * (1 - share), budget * (1 - share))""",
        "everything is read": """
            def new_and_good(budget, clean, share):
                return clean""",
    },
    "beam_search": {
        "greedy": """
            def beam_search(table, start, n, width):
                ids, p = [start], 1.0
                for _ in range(n):
                    j = int(table[ids[-1]].argmax())
                    p *= float(table[ids[-1], j])
                    ids.append(j)
                return ids, p""",
        "a logarithm for a probability": """
            def beam_search(table, start, n, width):
                beams = [(0.0, [start])]
                for _ in range(n):
                    longer = [
                        (s + math.log(p), ids + [j])
                        for s, ids in beams
                        for j, p in enumerate(table[ids[-1]].tolist())
                        if p > 0
                    ]
                    beams = sorted(longer, reverse=True)[:width]
                return beams[0][1], beams[0][0]""",
        "the least likely": """
            def beam_search(table, start, n, width):
                beams = [(1.0, [start])]
                for _ in range(n):
                    longer = [
                        (s * p, ids + [j])
                        for s, ids in beams
                        for j, p in enumerate(table[ids[-1]].tolist())
                    ]
                    beams = sorted(longer)[:width]
                return beams[0][1], beams[0][0]""",
        "width is ignored": """
            def beam_search(table, start, n, width):
                beams = [(1.0, [start])]
                for _ in range(n):
                    longer = [
                        (s * p, ids + [j])
                        for s, ids in beams
                        for j, p in enumerate(table[ids[-1]].tolist())
                    ]
                    beams = sorted(longer, reverse=True)
                return beams[0][1], beams[0][0]""",
    },
    "crossover": {
        "six times the width": """
            def crossover(cfg):
                return 6 * cfg.d_model""",
        "without the head": """
            def crossover(cfg):
                a = parameter_anatomy(cfg)
                return -(-6 * a.blocks // (12 * a.n_layers * a.d_model))""",
        "rounded down": """
            def crossover(cfg):
                a = parameter_anatomy(cfg)
                return 6 * (a.blocks + a.head) // (12 * a.n_layers * a.d_model)""",
        "its own scores count as matrices": """
            def crossover(cfg):
                return -(-flops_per_token(cfg) // (12 * cfg.n_layers * cfg.d_model))""",
        "the answer of the first case": "def crossover(cfg):\n    return 5_942",
    },
    "deepest": {
        "the answer of the first case": """
            def deepest(cfg, room):
                return 0 if room < 1e9 else 112""",
        "one too many": """
            def deepest(cfg, room):
                how = dict(mode="full", half=True, optimizer="adamw", accumulate=True)
                n = 1
                while memory_forecast(replace(cfg, n_layers=n), 1, **how)["peak"] <= room:
                    n += 1
                return n""",
        "nothing forgotten": """
            def deepest(cfg, room):
                how = dict(half=True, optimizer="adamw", accumulate=True)
                n = 0
                while memory_forecast(replace(cfg, n_layers=n + 1), 1, **how)["peak"] <= room:
                    n += 1
                return n""",
        "sixteen bytes a weight": """
            def deepest(cfg, room):
                left = room - 16 * cfg.vocab_size * cfg.d_model
                return max(0, int(left / (16 * 12 * cfg.d_model**2)))""",
    },
    "usd_per_billion": {
        "an hour": """
            def usd_per_billion(preset, gpu):
                return find_gpu(gpu).usd""",
        "no price is free": """
            def usd_per_billion(preset, gpu):
                card = find_gpu(gpu)
                hours = 1e9 * seconds_per_token(config_of(preset), card) / 3600
                return hours * (card.usd or 0)""",
        "a million": """
            def usd_per_billion(preset, gpu):
                card = find_gpu(gpu)
                if card.usd is None:
                    return None
                return 1e6 * seconds_per_token(config_of(preset), card) / 3600 * card.usd""",
        "always the 134M": """
            def usd_per_billion(preset, gpu):
                card = find_gpu(gpu)
                if card.usd is None:
                    return None
                return 1e9 * seconds_per_token(config_of("gpt2-134m"), card) / 3600 * card.usd""",
        "with checkpointing": """
            def usd_per_billion(preset, gpu):
                card = find_gpu(gpu)
                if card.usd is None:
                    return None
                seconds = 1e9 * seconds_per_token(config_of(preset), card, "full")
                return seconds / 3600 * card.usd""",
    },
    "fastest_mode": {
        "never forget": 'def fastest_mode(cfg, gpu, batch):\n    return "off"',
        "always fits": """
            def fastest_mode(cfg, gpu, batch):
                if gpu.memory_gb > 16:
                    return "off"
                return "full" if batch > 40 else "selective"
            """,
        "one sequence is enough": """
            def fastest_mode(cfg, gpu, batch):
                how = dict(half=True, optimizer="adamw", accumulate=True)
                for mode in MODES:
                    if memory_forecast(cfg, 1, mode=mode, **how)["peak"] <= 1e9 * gpu.memory_gb:
                        return mode""",
        "the leanest": """
            def fastest_mode(cfg, gpu, batch):
                how = dict(half=True, optimizer="adamw", accumulate=True)
                peak = memory_forecast(cfg, batch, mode="full", **how)["peak"]
                return "full" if peak <= 1e9 * gpu.memory_gb else None""",
    },
    "spent": {
        "by the decay alone": "def spent(cfg):\n    return 1 - cfg.decay / 2",
        "decay, or constant": """
            def spent(cfg):
                return 1.0 if cfg.schedule == "constant" else 1 - cfg.decay / 2""",
        "without the warm-up": """
            def spent(cfg):
                c = TrainConfig(steps=cfg.steps, warmup=0, decay=cfg.decay, floor=cfg.floor)
                return sum(lr_factor(step, c) for step in range(c.steps)) / c.steps""",
        "the sum": """
            def spent(cfg):
                return sum(lr_factor(step, cfg) for step in range(cfg.steps))""",
        "first and last": """
            def spent(cfg):
                return (lr_factor(0, cfg) + lr_factor(cfg.steps - 1, cfg)) / 2""",
    },
    "pieces_agree": {
        "never": "def pieces_agree(n, micro):\n    return False",
        "always": "def pieces_agree(n, micro):\n    return True",
        "divides": "def pieces_agree(n, micro):\n    return n % micro == 0",
        "the other way round": "def pieces_agree(n, micro):\n    return micro % n == 0",
        "one piece or single sequences": """
            def pieces_agree(n, micro):
                return micro >= n or micro == 1""",
    },
    "turned": {
        "nothing turns": "def turned(gradients, limit):\n    return 0.0",
        "one factor for all": """
            def turned(gradients, limit):
                before = torch.cat([g.flatten() for g in gradients])
                after = before * min(1, limit / before.norm())
                cosine = before @ after / before.norm() / after.norm()
                return math.degrees(math.acos(min(1, cosine.item())))""",
        "always scaled to the limit": """
            def turned(gradients, limit):
                before = torch.cat([g.flatten() for g in gradients])
                after = torch.cat([g.flatten() * limit / g.norm() for g in gradients])
                cosine = before @ after / before.norm() / after.norm()
                return math.degrees(math.acos(min(1, cosine.item())))""",
        "radians": """
            def turned(gradients, limit):
                before = torch.cat([g.flatten() for g in gradients])
                after = torch.cat([g.flatten() * min(1, limit / g.norm()) for g in gradients])
                cosine = before @ after / before.norm() / after.norm()
                return math.acos(min(1, cosine.item()))""",
        "in place": """
            def turned(gradients, limit):
                before = torch.cat([g.flatten() for g in gradients])
                for g in gradients:
                    g *= min(1, limit / g.norm())
                after = torch.cat([g.flatten() for g in gradients])
                cosine = before @ after / before.norm() / after.norm()
                return math.degrees(math.acos(min(1, cosine.item())))""",
    },
    "adamw_path": {
        "without the fair shares": """
            def adamw_path(gradients, rate, decay):
                x, m, s, path = 1.0, 0.0, 0.0, []
                for g in gradients:
                    x -= rate * decay * x
                    m, s = 0.9 * m + 0.1 * g, 0.95 * s + 0.05 * g**2
                    x -= rate * m / s**0.5
                    path.append(x)
                return path""",
        "the shares are kept in the means": """
            def adamw_path(gradients, rate, decay):
                x, m, s, path = 1.0, 0.0, 0.0, []
                for n, g in enumerate(gradients, 1):
                    x -= rate * decay * x
                    m = (0.9 * m + 0.1 * g) / (1 - 0.9**n)
                    s = (0.95 * s + 0.05 * g**2) / (1 - 0.95**n)
                    x -= rate * m / s**0.5
                    path.append(x)
                return path""",
        "with the gradient": """
            def adamw_path(gradients, rate, decay):
                x, m, s, path = 1.0, 0.0, 0.0, []
                for n, g in enumerate(gradients, 1):
                    x -= rate * decay * x
                    m, s = 0.9 * m + 0.1 * g, 0.95 * s + 0.05 * g**2
                    x += rate * (m / (1 - 0.9**n)) / (s / (1 - 0.95**n)) ** 0.5
                    path.append(x)
                return path""",
        "without the root": """
            def adamw_path(gradients, rate, decay):
                x, m, s, path = 1.0, 0.0, 0.0, []
                for n, g in enumerate(gradients, 1):
                    x -= rate * decay * x
                    m, s = 0.9 * m + 0.1 * g, 0.95 * s + 0.05 * g**2
                    x -= rate * (m / (1 - 0.9**n)) / (s / (1 - 0.95**n))
                    path.append(x)
                return path""",
        "the sign alone": """
            def adamw_path(gradients, rate, decay):
                x, path = 1.0, []
                for g in gradients:
                    x -= rate * decay * x
                    x -= rate * (1 if g > 0 else -1)
                    path.append(x)
                return path""",
        "plain steps": """
            def adamw_path(gradients, rate, decay):
                x, path = 1.0, []
                for g in gradients:
                    x -= rate * decay * x
                    x -= rate * g
                    path.append(x)
                return path""",
        "no decay": """
            def adamw_path(gradients, rate, decay):
                x, m, s, path = 1.0, 0.0, 0.0, []
                for n, g in enumerate(gradients, 1):
                    m, s = 0.9 * m + 0.1 * g, 0.95 * s + 0.05 * g**2
                    x -= rate * (m / (1 - 0.9**n)) / (s / (1 - 0.95**n)) ** 0.5
                    path.append(x)
                return path""",
        "the decay is part of the gradient": """
            def adamw_path(gradients, rate, decay):
                x, m, s, path = 1.0, 0.0, 0.0, []
                for n, g in enumerate(gradients, 1):
                    g = g + decay * x
                    m, s = 0.9 * m + 0.1 * g, 0.95 * s + 0.05 * g**2
                    x -= rate * (m / (1 - 0.9**n)) / (s / (1 - 0.95**n)) ** 0.5
                    path.append(x)
                return path""",
        "the last place alone": "def adamw_path(gradients, rate, decay):\n    return [1 - rate]",
    },
    "may_step": {
        "the loss alone": "def may_step(loss, gradients):\n    return bool(loss.isfinite())",
        "infinity passes": """
            def may_step(loss, gradients):
                return not any(t.isnan().any() for t in [loss, *gradients])""",
        "the first gradient": """
            def may_step(loss, gradients):
                return bool(loss.isfinite() and gradients[0].isfinite().all())""",
        "the length": """
            def may_step(loss, gradients):
                length = sum((g**2).sum() for g in gradients).sqrt()
                return bool(loss.isfinite() and length.isfinite())""",
        "longer than a limit": """
            def may_step(loss, gradients):
                return not any(t.abs().max() > 1e6 for t in [loss, *gradients])""",
        "any number is enough": """
            def may_step(loss, gradients):
                return all(bool(t.isfinite().any()) for t in [loss, *gradients])""",
        "never": "def may_step(loss, gradients):\n    return False",
    },
    "snapshot": {
        "no copy": """
            def snapshot(model, opt, done):
                return {"model": model.state_dict(), "opt": opt.state_dict(), "step": done}
            def restore(kept, model, opt):
                model.load_state_dict(kept["model"])
                opt.load_state_dict(kept["opt"])
                return kept["step"]""",
        "the optimizer forgotten": """
            def snapshot(model, opt, done):
                return {"model": copy.deepcopy(model.state_dict()), "step": done}
            def restore(kept, model, opt):
                model.load_state_dict(kept["model"])
                return kept["step"]""",
        "the step forgotten": """
            def snapshot(model, opt, done):
                return copy.deepcopy({"model": model.state_dict(), "opt": opt.state_dict()})
            def restore(kept, model, opt):
                model.load_state_dict(kept["model"])
                opt.load_state_dict(kept["opt"])
                return 0""",
        "kept, and not put back": """
            def snapshot(model, opt, done):
                run = {"model": model.state_dict(), "opt": opt.state_dict(), "step": done}
                return copy.deepcopy(run)
            def restore(kept, model, opt):
                model.load_state_dict(kept["model"])
                return kept["step"]""",
        "the optimizer not copied": """
            def snapshot(model, opt, done):
                weights = copy.deepcopy(model.state_dict())
                return {"model": weights, "opt": opt.state_dict(), "step": done}
            def restore(kept, model, opt):
                model.load_state_dict(kept["model"])
                opt.load_state_dict(kept["opt"])
                return kept["step"]""",
        "good for one kill": """
            def snapshot(model, opt, done):
                run = {"model": model.state_dict(), "opt": opt.state_dict(), "step": done}
                return copy.deepcopy(run)
            def restore(kept, model, opt):
                model.load_state_dict(kept["model"])
                opt.load_state_dict(kept["opt"])
                return kept["step"]""",
    },
    "factor": {
        "constant": "def factor(n, steps):\n    return 0.5",
        "stands still": "def factor(n, steps):\n    return 0.0",
        "falls too soon": "def factor(n, steps):\n    return 0.5**n",
        "for one length": "def factor(n, steps):\n    return max(0.0, 1 - n / 100)",
        "upwards": "def factor(n, steps):\n    return n / steps",
        "beyond the peak": "def factor(n, steps):\n    return 1.5 * (1 - n / steps)",
    },
    "bound_by": {
        "always arithmetic": "def bound_by(*_):\n    return 'arithmetic'",
        "a fixed line": """
            def bound_by(flops, moved, peak, bandwidth):
                return "arithmetic" if flops / moved > 20 else "memory"
            """,
        "the wrong way round": """
            def bound_by(flops, moved, peak, bandwidth):
                return "memory" if flops / peak > moved / bandwidth else "arithmetic"
            """,
        "more FLOPs than bytes": """
            def bound_by(flops, moved, peak, bandwidth):
                return "arithmetic" if flops > 100 * moved else "memory"
            """,
    },
    "whole_gain": {
        "the mean gain": """
            def whole_gain(shares, gains):
                return 1 + sum(s * (g - 1) for s, g in zip(shares, gains))""",
        "the product": """
            def whole_gain(shares, gains):
                return math.prod(gains)""",
        "the rest costs nothing": """
            def whole_gain(shares, gains):
                return 1 / sum(s / g for s, g in zip(shares, gains)) if shares else 1.0""",
        "never slower": """
            def whole_gain(shares, gains):
                new = 1 - sum(shares) + sum(s / max(1, g) for s, g in zip(shares, gains))
                return 1 / new""",
        "the answer of the first case": "def whole_gain(shares, gains):\n    return 1 / 0.85",
    },
    "saved_usd": {
        "compiles once": """
            def saved_usd(steps, every, off_s, on_s, ready_s, usd_per_hour):
                return (steps * (off_s - on_s) - ready_s) / 3600 * usd_per_hour""",
        "whole starts only": """
            def saved_usd(steps, every, off_s, on_s, ready_s, usd_per_hour):
                starts = steps // every
                return (steps * (off_s - on_s) - starts * ready_s) / 3600 * usd_per_hour""",
        "seconds": """
            def saved_usd(steps, every, off_s, on_s, ready_s, usd_per_hour):
                return steps * (off_s - on_s) - math.ceil(steps / every) * ready_s""",
        "compiling is free": """
            def saved_usd(steps, every, off_s, on_s, ready_s, usd_per_hour):
                return steps * (off_s - on_s) / 3600 * usd_per_hour""",
        "never a loss": """
            def saved_usd(steps, every, off_s, on_s, ready_s, usd_per_hour):
                starts = math.ceil(steps / every)
                seconds = steps * (off_s - on_s) - starts * ready_s
                return max(0.0, seconds) / 3600 * usd_per_hour""",
    },
    "gains": {
        "the mean alone": """
            def gains(off, on):
                return sum(a / b for a, b in zip(off, on)) / len(off) > 1""",
        "most turns": """
            def gains(off, on):
                return sum(b < a for a, b in zip(off, on)) > len(off) / 2""",
        "the best turn": "def gains(off, on):\n    return min(on) < min(off)",
        "sums, without the noise": "def gains(off, on):\n    return sum(on) < sum(off)",
        "the spread of the times": """
            def gains(off, on):
                off, on = torch.tensor(off), torch.tensor(on)
                error = (off.std() + on.std()) / math.sqrt(len(off))
                return bool(off.mean() - on.mean() > 2 * error)""",
    },
    "least_seconds": {
        "everything at once": """
            def least_seconds(kernels, peak, bandwidth):
                flops = sum(f for f, _ in kernels)
                return max(flops / peak, sum(b for _, b in kernels) / bandwidth)""",
        "nothing overlaps": """
            def least_seconds(kernels, peak, bandwidth):
                return sum(f / peak + b / bandwidth for f, b in kernels)""",
        "arithmetic only": """
            def least_seconds(kernels, peak, bandwidth):
                return sum(f for f, _ in kernels) / peak""",
        "the longest kernel": """
            def least_seconds(kernels, peak, bandwidth):
                return max((max(f / peak, b / bandwidth) for f, b in kernels), default=0)""",
    },
    "done_first": {
        "the fewest steps": """
            def done_first(steps, seconds):
                return min((b for b in steps if steps[b]), key=steps.get)""",
        "the shortest step": """
            def done_first(steps, seconds):
                return min((b for b in steps if steps[b]), key=seconds.get)""",
        "the fewest tokens": """
            def done_first(steps, seconds):
                return min((b for b in steps if steps[b]), key=lambda b: b * steps[b])""",
        "never arrives first": """
            def done_first(steps, seconds):
                return min(steps, key=lambda b: (steps[b] or 0) * seconds[b])""",
    },
    "padded_size": {
        "always one more piece": """
            def padded_size(vocab, multiple):
                return (vocab // multiple + 1) * multiple""",
        "rounded": """
            def padded_size(vocab, multiple):
                return round(vocab / multiple) * multiple""",
        "always 64": """
            def padded_size(vocab, multiple):
                return math.ceil(vocab / 64) * 64""",
    },
    "matmul_intensity": {
        "multiplications only": """
            def matmul_intensity(n, k, m, size):
                return n * k * m / (size * (n * k + k * m + n * m))""",
        "without the result": """
            def matmul_intensity(n, k, m, size):
                return 2 * n * k * m / (size * (n * k + k * m))""",
        "always 4 bytes": """
            def matmul_intensity(n, k, m, size):
                return 2 * n * k * m / (4 * (n * k + k * m + n * m))""",
    },
    "scale_for": {
        "always 2^16": "def scale_for(g):\n    return 2.0**16",
        "one too many": """
            def scale_for(g):
                scale = 1
                while g * scale <= 2.0**-24:
                    scale *= 2
                return scale""",
        "not a power of two": "def scale_for(g):\n    return max(1, 2.0**-24 / g)",
    },
    "fewest_tokens": {
        "the smallest batch": "def fewest_tokens(steps):\n    return min(steps)",
        "the fewest steps": """
            def fewest_tokens(steps):
                return min((b for b in steps if steps[b]), key=steps.get)""",
        "never arrives first": """
            def fewest_tokens(steps):
                return min(steps, key=lambda b: b * (steps[b] or 0))""",
    },
    "next_scale": {
        "never changes": """
            def next_scale(scale, good, finite, patience=2000):
                return scale, good + 1""",
        "does not start again": """
            def next_scale(scale, good, finite, patience=2000):
                if not finite:
                    return scale / 2, 0
                return (scale * 2, good + 1) if good + 1 == patience else (scale, good + 1)""",
        "one step late": """
            def next_scale(scale, good, finite, patience=2000):
                if not finite:
                    return scale / 2, 0
                return (scale * 2, 0) if good == patience else (scale, good + 1)""",
        "a patience of 2000 always": """
            def next_scale(scale, good, finite, patience=2000):
                if not finite:
                    return scale / 2, 0
                return (scale * 2, 0) if good + 1 == 2000 else (scale, good + 1)""",
        "overflow counts as a step": """
            def next_scale(scale, good, finite, patience=2000):
                if good + 1 == patience:
                    return scale * 2, 0
                return (scale, good + 1) if finite else (scale / 2, 0)""",
    },
    "clipped": {
        "each by itself": """
            def clipped(gradients, limit):
                return [g * min(1, limit / g.norm().item()) for g in gradients]""",
        "numbers cut off": """
            def clipped(gradients, limit):
                return [g.clamp(-limit, limit) for g in gradients]""",
        "short ones are stretched": """
            def clipped(gradients, limit):
                length = torch.cat([g.flatten() for g in gradients]).norm()
                return [g * limit / length for g in gradients]""",
        "the sum of the lengths": """
            def clipped(gradients, limit):
                length = sum(g.norm().item() for g in gradients)
                return [g * min(1, limit / length) for g in gradients]""",
        "changes what it gets": """
            def clipped(gradients, limit):
                length = torch.cat([g.flatten() for g in gradients]).norm().item()
                return [g.mul_(min(1, limit / length)) for g in gradients]""",
    },
    "shares": {
        "by rows": """
            def shares(targets, micro):
                return [len(piece) / len(targets) for piece in targets.split(micro)]""",
        "the mean of means": """
            def shares(targets, micro):
                pieces = targets.split(micro)
                return [1 / len(pieces) for _ in pieces]""",
        "counts, not shares": """
            def shares(targets, micro):
                return [int((piece != -100).sum()) for piece in targets.split(micro)]""",
        "only pieces that count": """
            def shares(targets, micro):
                pieces = [p for p in targets.split(micro) if (p != -100).any()]
                total = sum(int((p != -100).sum()) for p in pieces)
                return [int((p != -100).sum()) / total for p in pieces][:1]""",
    },
    "made_round": {
        "as it was": "def made_round(m):\n    return m",
        "length 1 altogether": "def made_round(m):\n    return m / m.norm()",
        "signs": "def made_round(m):\n    return m.sign()",
        "any round matrix": """
            def made_round(m):
                return torch.eye(max(m.shape))[: m.shape[0], : m.shape[1]]""",
        "five rounds of Newton-Schulz": """
            def made_round(m):
                tall = m.shape[0] > m.shape[1]
                x = (m.T if tall else m) / m.norm()
                for _ in range(5):
                    gram = x @ x.T
                    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
                return x.T if tall else x""",
    },
    "rounds_needed": {
        "always five": "def rounds_needed(s):\n    return 5",
        "one too many": """
            def rounds_needed(s):
                rounds = 1
                while s < 0.5:
                    s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
                    rounds += 1
                return rounds""",
        "only the first factor, and too small": """
            def rounds_needed(s):
                rounds = 0
                while s < 0.5:
                    s, rounds = 2 * s, rounds + 1
                return rounds""",
        "up to 1": """
            def rounds_needed(s):
                rounds = 0
                while s < 0.95 and rounds < 20:
                    s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
                    rounds += 1
                return rounds""",
    },
    "first_bad": {
        "counted from 0": """
            def first_bad(losses):
                return (~losses.isfinite()).int().argmax()""",
        "all finite is step 1": """
            def first_bad(losses):
                return (~losses.isfinite()).int().argmax() + 1""",
        "NaN only": """
            def first_bad(losses):
                bad = losses.isnan()
                return torch.where(bad.any(), bad.int().argmax() + 1, 0)""",
        "the last one": """
            def first_bad(losses):
                bad = ~losses.isfinite()
                return (bad * torch.arange(1, len(losses) + 1)).max()""",
        "a number of Python": """
            def first_bad(losses):
                bad = (~losses.isfinite()).tolist()
                return bad.index(True) + 1 if True in bad else 0""",
    },
    "block_share": {
        "the first depth": """
            def block_share(depths, n_layers, steps):
                return depths[0][1] / n_layers if depths else 1.0""",
        "the mean of the depths": """
            def block_share(depths, n_layers, steps):
                return sum(d for _, d in depths) / len(depths) / n_layers if depths else 1.0""",
        "everything": "def block_share(depths, n_layers, steps):\n    return 1.0",
        "one step late": """
            def block_share(depths, n_layers, steps):
                total = 0
                for n in range(steps):
                    awake = depths[0][1] if depths else n_layers
                    for share, depth in depths:
                        if n > share * steps:
                            awake = depth
                    total += awake
                return total / (n_layers * steps)""",
    },
    "layers_of": {
        "matrices only": """
            def layers_of(parameters, width, vocab, context):
                return (parameters - (vocab + context) * width) // (12 * width**2)""",
        "an output layer of its own": """
            def layers_of(parameters, width, vocab, context):
                block = 12 * width**2 + 13 * width
                return (parameters - (2 * vocab + context) * width - 2 * width) // block""",
        "no positions": """
            def layers_of(parameters, width, vocab, context):
                block = 12 * width**2 + 13 * width
                return (parameters - vocab * width - 2 * width) // block""",
        "everything in blocks": """
            def layers_of(parameters, width, vocab, context):
                return parameters // (12 * width**2 + 13 * width)""",
        "always GPT-2": "def layers_of(*sizes):\n    return 12",
    },
    "fullest": {
        "the picture": "def fullest(blocks, w, a):\n    return 15",
        "always at the loss": """
            def fullest(blocks, w, a):
                return 3 * blocks * w + blocks * a""",
        "always at the end": "def fullest(blocks, w, a):\n    return 4 * blocks * w",
        "everything at once": "def fullest(blocks, w, a):\n    return blocks * (4 * w + a)",
    },
    "all_at_once": {
        "the sum": """
            def all_at_once(logits, targets):
                return F.cross_entropy(
                    logits.flatten(0, 1), targets.flatten(), reduction="sum"
                )""",
        "still a loop over the letters": """
            def all_at_once(logits, targets):
                rows = zip(logits.flatten(0, 1), targets.flatten())
                return torch.stack([F.cross_entropy(row, t) for row, t in rows]).mean()""",
        "a number without gradients of its own": """
            def all_at_once(logits, targets):
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
                return loss.detach() + 0 * logits.sum()""",
        "one loss a text": """
            def all_at_once(logits, targets):
                return F.cross_entropy(logits.mT, targets, reduction="none").mean(1)""",
    },
    "cheapest": {
        "the lowest price an hour": """
            def cheapest(flops, mfu, cards, hours, dollars):
                costs = {}
                for name, (speed, price) in cards.items():
                    needs = flops / (speed * mfu) / 3600
                    if needs <= hours and needs * price <= dollars:
                        costs[name] = price
                return min(costs, key=costs.get, default=None)""",
        "no deadline": """
            def cheapest(flops, mfu, cards, hours, dollars):
                costs = {
                    name: flops / (speed * mfu) / 3600 * price
                    for name, (speed, price) in cards.items()
                }
                fit = [name for name in costs if costs[name] <= dollars]
                return min(fit, key=costs.get, default=None)""",
        "no purse": """
            def cheapest(flops, mfu, cards, hours, dollars):
                costs = {}
                for name, (speed, price) in cards.items():
                    needs = flops / (speed * mfu) / 3600
                    if needs <= hours:
                        costs[name] = needs * price
                return min(costs, key=costs.get, default=None)""",
        "full speed": """
            def cheapest(flops, mfu, cards, hours, dollars):
                costs = {}
                for name, (speed, price) in cards.items():
                    needs = flops / speed / 3600
                    if needs <= hours and needs * price <= dollars:
                        costs[name] = needs * price
                return min(costs, key=costs.get, default=None)""",
        "below the limits, not at them": """
            def cheapest(flops, mfu, cards, hours, dollars):
                costs = {}
                for name, (speed, price) in cards.items():
                    needs = flops / (speed * mfu) / 3600
                    if needs < hours and needs * price < dollars:
                        costs[name] = needs * price
                return min(costs, key=costs.get, default=None)""",
    },
    "run_hours": {
        "no scores of attention": """
            def run_hours(layers, width, vocab, context, tokens, speed):
                met = 12 * layers * width**2 + vocab * width
                return 6 * met * tokens / speed / 3600""",
        "no output layer": """
            def run_hours(layers, width, vocab, context, tokens, speed):
                flops = training_flops(12 * layers * width**2, layers, width, context)
                return flops * tokens / speed / 3600""",
        "rows that are only looked up": """
            def run_hours(layers, width, vocab, context, tokens, speed):
                met = 12 * layers * width**2 + (vocab + context) * width
                return training_flops(met, layers, width, context) * tokens / speed / 3600""",
        "seconds": """
            def run_hours(layers, width, vocab, context, tokens, speed):
                met = 12 * layers * width**2 + vocab * width
                return training_flops(met, layers, width, context) * tokens / speed""",
        "always a million tokens": """
            def run_hours(layers, width, vocab, context, tokens, speed):
                met = 12 * layers * width**2 + vocab * width
                return training_flops(met, layers, width, context) * 1e6 / speed / 3600""",
        "always one speed": """
            def run_hours(layers, width, vocab, context, tokens, speed):
                met = 12 * layers * width**2 + vocab * width
                return training_flops(met, layers, width, context) * tokens / 1e9 / 3600""",
    },
    "loss_bytes": {
        "the weights alone": """
            def loss_bytes(layers, width, vocab, context, batch):
                return 4 * (12 * layers * width**2 + (vocab + context) * width)""",
        "with gradients": """
            def loss_bytes(layers, width, vocab, context, batch):
                block = 12 * width**2 + 13 * width
                parameters = layers * block + (vocab + context) * width + 2 * width
                kept = (16 * layers + 2) * width + 3 * vocab
                return 16 * parameters + 4 * batch * context * kept""",
        "without logits": """
            def loss_bytes(layers, width, vocab, context, batch):
                block = 12 * width**2 + 13 * width
                parameters = layers * block + (vocab + context) * width + 2 * width
                return 12 * parameters + 4 * batch * context * (16 * layers + 2) * width""",
        "one table of logits": """
            def loss_bytes(layers, width, vocab, context, batch):
                block = 12 * width**2 + 13 * width
                parameters = layers * block + (vocab + context) * width + 2 * width
                kept = (16 * layers + 2) * width + vocab
                return 12 * parameters + 4 * batch * context * kept""",
        "one sequence": """
            def loss_bytes(layers, width, vocab, context, batch):
                block = 12 * width**2 + 13 * width
                parameters = layers * block + (vocab + context) * width + 2 * width
                kept = (16 * layers + 2) * width + 3 * vocab
                return 12 * parameters + 4 * context * kept""",
        "numbers instead of bytes": """
            def loss_bytes(layers, width, vocab, context, batch):
                block = 12 * width**2 + 13 * width
                parameters = layers * block + (vocab + context) * width + 2 * width
                kept = (16 * layers + 2) * width + 3 * vocab
                return 3 * parameters + batch * context * kept""",
    },
    "widest": {
        "too wide by one": """
            def widest(layers, batch, room):
                width = 32
                while True:
                    sizes = dict(n_layers=layers, d_model=width, n_heads=width // 32)
                    cfg = replace(config_of("shakespeare"), **sizes)
                    if memory_forecast(cfg, batch, optimizer="adamw")["peak"] > room:
                        return width
                    width += 32""",
        "weights only": """
            def widest(layers, batch, room):
                return int((room / 4 / 12 / layers) ** 0.5) // 32 * 32""",
        "one sequence at a time": """
            def widest(layers, batch, room):
                width = 0
                while True:
                    wider = width + 32
                    sizes = dict(n_layers=layers, d_model=wider, n_heads=wider // 32)
                    cfg = replace(config_of("shakespeare"), **sizes)
                    if memory_forecast(cfg, 1, optimizer="adamw")["peak"] > room:
                        return width
                    width = wider""",
        "always the first model": "def widest(layers, batch, room):\n    return 128",
    },
    "loss_between": {
        "a line over the size itself": """
            def loss_between(sizes, losses, size):
                for small, large, high, low in zip(sizes, sizes[1:], losses, losses[1:]):
                    if small <= size <= large:
                        return high + (size - small) / (large - small) * (low - high)""",
        "one line from the first to the last": """
            def loss_between(sizes, losses, size):
                share = math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])
                return losses[0] + share * (losses[-1] - losses[0])""",
        "always the middle": """
            def loss_between(sizes, losses, size):
                for small, large, high, low in zip(sizes, sizes[1:], losses, losses[1:]):
                    if small <= size <= large:
                        return (high + low) / 2""",
        "the nearest size": """
            def loss_between(sizes, losses, size):
                near = min(sizes, key=lambda known: abs(math.log(known / size)))
                return losses[sizes.index(near)]""",
        "one guess for all": "def loss_between(sizes, losses, size):\n    return 1.65",
    },
    "vocabulary_share": {
        "always tied": """
            def vocabulary_share(cfg):
                return cfg.vocab_size * cfg.d_model / count_params(cfg)""",
        "never tied": """
            def vocabulary_share(cfg):
                return 2 * cfg.vocab_size * cfg.d_model / count_params(cfg)""",
        "with the positions": """
            def vocabulary_share(cfg):
                table = param_table(cfg)
                return (table["tok"] + table["head"] + table["pos"]) / count_params(cfg)""",
        "a third": "def vocabulary_share(cfg):\n    return 1 / 3",
    },
    "tokens_for": {
        "a price is invented": """
            def tokens_for(usd, preset, gpu):
                card = find_gpu(gpu)
                hours = usd / (card.usd or 1.0)
                return int(hours * 3600 / seconds_per_token(config_of(preset), card))""",
        "hours for seconds": """
            def tokens_for(usd, preset, gpu):
                card = find_gpu(gpu)
                if card.usd is None:
                    return None
                return int(usd / card.usd / seconds_per_token(config_of(preset), card))""",
        "a dollar an hour": """
            def tokens_for(usd, preset, gpu):
                card = find_gpu(gpu)
                if card.usd is None:
                    return None
                return int(usd * 3600 / seconds_per_token(config_of(preset), card))""",
        "parts of a token": """
            def tokens_for(usd, preset, gpu):
                card = find_gpu(gpu)
                if card.usd is None:
                    return None
                return usd / card.usd * 3600 / seconds_per_token(config_of(preset), card)""",
    },
}
WRONG |= wrong_about_data.WRONG
PAGES = {name: path for path in CHAPTERS for name in exercises(path)[0] if name in WRONG}


def test_every_check_of_these_chapters_is_attacked():
    pages = [p for p in CHAPTERS if p.parent.name == "season1" and p.stem[:2] in "02 03 04 05 06"]
    names = [name for page in pages + deeper_pages(ROOT, "season1") for name in exercises(page)[0]]
    assert sorted(names) == sorted(WRONG) == sorted(PAGES), "each name once, and attacked"
    assert min(map(len, WRONG.values())) >= 3


@pytest.mark.parametrize("name, answer", cases(WRONG))
def test_a_wrong_answer_is_refused_in_words(name, answer):
    assert len(refusal(PAGES[name], name, answer).split()) >= 3, "a refusal says what is wrong"
