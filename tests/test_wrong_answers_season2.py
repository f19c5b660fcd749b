"""Wrong answers to the checks of season 2: shortcuts and usual mistakes, each refused in words."""

import pytest
from attacks import cases, refusal
from test_exercises import CHAPTERS, exercises

WRONG = {
    "which_stop": {
        "the lower limit forgotten": """
            def which_stop(logs, limits):
                stopped = {}
                for name, log in logs.items():
                    for step, least, most in limits:
                        loss = [x for n, x in log if n <= step][-1]
                        if log[-1][0] >= step and not loss <= most:
                            stopped.setdefault(name, step)
                return stopped""",
        "asked before the log is there": """
            def which_stop(logs, limits):
                stopped = {}
                for name, log in logs.items():
                    for step, least, most in limits:
                        loss = [x for n, x in log if n <= step][-1]
                        if not least <= loss <= most:
                            stopped.setdefault(name, step)
                return stopped""",
        "no number passes": """
            def which_stop(logs, limits):
                stopped = {}
                for name, log in logs.items():
                    for step, least, most in limits:
                        loss = [x for n, x in log if n <= step][-1]
                        if log[-1][0] >= step and (loss < least or loss > most):
                            stopped.setdefault(name, step)
                return stopped""",
        "the last gate that fails": """
            def which_stop(logs, limits):
                stopped = {}
                for name, log in logs.items():
                    for step, least, most in limits:
                        loss = [x for n, x in log if n <= step][-1]
                        if log[-1][0] >= step and not least <= loss <= most:
                            stopped[name] = step
                return stopped""",
        "only the end of the run": """
            def which_stop(logs, limits):
                step, least, most = limits[-1]
                return {
                    name: step
                    for name, log in logs.items()
                    if log[-1][0] >= step and not least <= log[-1][1] <= most
                }""",
        "B alone, by eye": """
            def which_stop(logs, limits):
                return {"B": 64} if "B" in logs else {}""",
    },
    "half_turn": {
        "the other way round": "def half_turn():\n    return (1, 3), [0, 4, 8]",
        "a quarter turn": "def half_turn():\n    return (-1, 3), [0, 4, 8]",
        "half turns count as whole": "def half_turn():\n    return (-3, -1), [0, 2, 4, 6, 8]",
        "position 0 forgotten": "def half_turn():\n    return (-3, -1), [4, 8]",
        "three numbers": "def half_turn():\n    return (-3, -1, 0), [0, 4, 8]",
    },
    "texts_at_once": {
        "the weights forgotten": """
            def texts_at_once(cfg, gb):
                return int(gb * 1e9 // (cfg.context_length * kv_bytes(cfg)))""",
        "rounded up": """
            def texts_at_once(cfg, gb):
                room = gb * 1e9 - 2 * sum(llama_table(cfg).values())
                return max(0, math.ceil(room / (cfg.context_length * kv_bytes(cfg))))""",
        "below zero": """
            def texts_at_once(cfg, gb):
                room = gb * 1e9 - 2 * sum(llama_table(cfg).values())
                return int(room // (cfg.context_length * kv_bytes(cfg)))""",
        "tokens, not texts": """
            def texts_at_once(cfg, gb):
                room = gb * 1e9 - 2 * sum(llama_table(cfg).values())
                return max(0, int(room // kv_bytes(cfg)))""",
        "weights in fp32": """
            def texts_at_once(cfg, gb):
                room = gb * 1e9 - 4 * sum(llama_table(cfg).values())
                return max(0, int(room // (cfg.context_length * kv_bytes(cfg))))""",
        "no whole number": """
            def texts_at_once(cfg, gb):
                room = gb * 1e9 - 2 * sum(llama_table(cfg).values())
                return max(0, room / (cfg.context_length * kv_bytes(cfg)))""",
    },
    "to_halves": {
        "over all heads at once": """
            def to_halves(w, n_heads):
                return w.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1)""",
        "the way back": """
            def to_halves(w, n_heads):
                return w.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).flatten(0, 2)""",
        "columns instead of rows": """
            def to_halves(w, n_heads):
                return w.unflatten(1, (n_heads, -1, 2)).transpose(2, 3).flatten(1)""",
        "two heads only": """
            def to_halves(w, n_heads):
                return w.unflatten(0, (2, -1, 2)).transpose(1, 2).flatten(0, 2)""",
        "zeros": "def to_halves(w, n_heads):\n    return w * 0",
    },
    "one_head": {
        "nothing spent": "def one_head(cfg):\n    return replace(cfg, n_kv_heads=1)",
        "only the keys counted": """
            def one_head(cfg):
                saved = cfg.d_model * (cfg.n_kv_heads - 1) * cfg.head_size
                return replace(
                    cfg, n_kv_heads=1, d_ff=(cfg.d_ff + saved // (3 * cfg.d_model)) // 8 * 8
                )""",
        "two matrices a feed-forward layer": """
            def one_head(cfg):
                saved = 2 * cfg.d_model * (cfg.n_kv_heads - 1) * cfg.head_size
                return replace(
                    cfg, n_kv_heads=1, d_ff=(cfg.d_ff + saved // (2 * cfg.d_model)) // 8 * 8
                )""",
        "no multiple of 8": """
            def one_head(cfg):
                saved = 2 * cfg.d_model * (cfg.n_kv_heads - 1) * cfg.head_size
                return replace(cfg, n_kv_heads=1, d_ff=cfg.d_ff + saved // (3 * cfg.d_model))""",
        "fewer layers": """
            def one_head(cfg):
                return replace(cfg, n_kv_heads=1, n_layers=1)""",
    },
    "spot_price": {
        "the price as it is listed": """
            def spot_price(usd, interruptions, save, restart):
                return usd""",
        "a whole interval lost": """
            def spot_price(usd, interruptions, save, restart):
                lost = interruptions * (save + restart) / 60
                return usd / (1 - lost) if lost < 1 else float("inf")""",
        "added, not divided": """
            def spot_price(usd, interruptions, save, restart):
                lost = interruptions * (save / 2 + restart) / 60
                return usd * (1 + lost) if lost < 1 else float("inf")""",
        "a negative price": """
            def spot_price(usd, interruptions, save, restart):
                return usd / (1 - interruptions * (save / 2 + restart) / 60)""",
        "restarting is free": """
            def spot_price(usd, interruptions, save, restart):
                lost = interruptions * save / 2 / 60
                return usd / (1 - lost) if lost < 1 else float("inf")""",
    },
    "step_seconds": {
        "hidden before it is made smaller": """
            def step_seconds(compute, wait, bytes_each=4, hidden=0.0):
                left = max(0.0, wait - hidden * compute)
                return compute + left * bytes_each / 4""",
        "waiting below zero": """
            def step_seconds(compute, wait, bytes_each=4, hidden=0.0):
                return compute + wait * bytes_each / 4 - hidden * compute""",
        "a share of the waiting": """
            def step_seconds(compute, wait, bytes_each=4, hidden=0.0):
                return compute + wait * bytes_each / 4 * (1 - hidden)""",
        "all of it at once": """
            def step_seconds(compute, wait, bytes_each=4, hidden=0.0):
                return max(compute, wait * bytes_each / 4)""",
    },
    "vocabulary_for": {
        "a share of the rest": """
            def vocabulary_for(share, d_model, rest):
                return share * rest / (6 * d_model)""",
        "the forward pass alone": """
            def vocabulary_for(share, d_model, rest):
                return share / (1 - share) * rest / (2 * d_model)""",
        "the other way round": """
            def vocabulary_for(share, d_model, rest):
                return (1 - share) / share * rest / (6 * d_model)""",
        "the width of the 1B": """
            def vocabulary_for(share, d_model, rest):
                return share / (1 - share) * rest / (6 * 2048)""",
    },
    "gain_of": {
        "sums, not pairs": """
            def gain_of(without, with_flag):
                gain = np.mean(without) / np.mean(with_flag) - 1
                return gain, np.std(without, ddof=1) / len(without) ** 0.5""",
        "the scatter of one pair": """
            def gain_of(without, with_flag):
                ratios = np.array(without) / np.array(with_flag)
                return ratios.mean() - 1, ratios.std(ddof=1)""",
        "the other way round": """
            def gain_of(without, with_flag):
                ratios = np.array(with_flag) / np.array(without)
                return ratios.mean() - 1, ratios.std(ddof=1) / len(ratios) ** 0.5""",
        "no error": """
            def gain_of(without, with_flag):
                return np.median(np.array(without) / np.array(with_flag)) - 1, 0.0""",
        "never slower": """
            def gain_of(without, with_flag):
                ratios = np.array(without) / np.array(with_flag)
                return abs(ratios.mean() - 1), ratios.std(ddof=1) / len(ratios) ** 0.5""",
    },
    "first_alarm": {
        "its own best stretch alone": """
            def first_alarm(log, receipt):
                speeds, best = [row["tok_s"] for row in log], 0
                for rows in range(10, len(speeds) + 1):
                    late = median(speeds[rows - 10 : rows])
                    best = max(best, late)
                    if late < 0.8 * best:
                        return rows
                return None""",
        "the receipt alone": """
            def first_alarm(log, receipt):
                speeds = [row["tok_s"] for row in log]
                for rows in range(10, len(speeds) + 1):
                    if receipt and median(speeds[rows - 10 : rows]) < 0.8 * receipt:
                        return rows
                return None""",
        "the mean": """
            def first_alarm(log, receipt):
                speeds, best = [row["tok_s"] for row in log], receipt or 0
                for rows in range(10, len(speeds) + 1):
                    late = sum(speeds[rows - 10 : rows]) / 10
                    best = max(best, late)
                    if late < 0.8 * best:
                        return rows
                return None""",
        "one slow row": """
            def first_alarm(log, receipt):
                best = receipt or 0
                for rows, row in enumerate(log, 1):
                    best = max(best, row["tok_s"])
                    if row["tok_s"] < 0.8 * best:
                        return rows
                return None""",
        "from the first row on": """
            def first_alarm(log, receipt):
                speeds, best = [row["tok_s"] for row in log], receipt or 0
                for rows in range(1, len(speeds) + 1):
                    late = median(speeds[max(0, rows - 10) : rows])
                    best = max(best, late)
                    if late < 0.8 * best:
                        return rows
                return None""",
        "only the end of the log": """
            def first_alarm(log, receipt):
                speeds = [row["tok_s"] for row in log]
                if len(speeds) < 10:
                    return None
                late = [median(speeds[n - 10 : n]) for n in range(10, len(speeds) + 1)]
                best = max([receipt or 0, *late])
                return len(log) if late[-1] < 0.8 * best else None""",
        "its first row is its best": """
            def first_alarm(log, receipt):
                speeds = [row["tok_s"] for row in log]
                best = receipt or speeds[0]
                for rows in range(10, len(speeds) + 1):
                    if median(speeds[rows - 10 : rows]) < 0.8 * best:
                        return rows
                return None""",
    },
    "last_worth": {
        "the last phase": """
            def last_worth(phases, usd_per_nat):
                return phases[-1][0]""",
        "the last that is cheap enough": """
            def last_worth(phases, usd_per_nat):
                cheap = [
                    n for n, usd, drop in phases
                    if price_nat(usd, drop) is not None and price_nat(usd, drop) <= usd_per_nat
                ]
                return cheap[-1] if cheap else None""",
        "a rise is free": """
            def last_worth(phases, usd_per_nat):
                last = None
                for name, usd, drop in phases:
                    if usd > usd_per_nat * drop and drop > 0:
                        break
                    last = name
                return last""",
        "the mean since the start": """
            def last_worth(phases, usd_per_nat):
                last, paid, won = None, 0, 0
                for name, usd, drop in phases:
                    paid, won = paid + usd, won + drop
                    if won <= 0 or paid / won > usd_per_nat:
                        break
                    last = name
                return last""",
    },
    "price_gate": {
        "the price of the whole phase": """
            def price_gate(tokens, usd):
                return Gate(metric="usd_per_billion", most=usd, when="always", after=20)""",
        "a lowest price": """
            def price_gate(tokens, usd):
                return Gate(metric="usd_per_billion", least=usd / tokens * 1e9,
                            when="always", after=20)""",
        "asked at the end": """
            def price_gate(tokens, usd):
                return Gate(metric="usd_per_billion", most=usd / tokens * 1e9)""",
        "the limit of the first case": """
            def price_gate(tokens, usd):
                return Gate(metric="usd_per_billion", most=15.2588, when="always", after=20)""",
        "another metric": """
            def price_gate(tokens, usd):
                return Gate(metric="tok_s", least=usd / tokens * 1e9, when="always", after=20)""",
    },
    "false_alarms": {
        "those that fell this time": """
            def false_alarms(rooms, margin, scatter):
                return sum(room < -margin for room in rooms)""",
        "the limit without a seed": """
            def false_alarms(rooms, margin, scatter):
                return sum(NormalDist(0, scatter).cdf(-margin - room) for room in rooms)""",
        "the margin on the wrong side": """
            def false_alarms(rooms, margin, scatter):
                two = NormalDist(0, math.sqrt(2) * scatter)
                return sum(two.cdf(margin - room) for room in rooms)""",
        "a mean for the sum": """
            def false_alarms(rooms, margin, scatter):
                two = NormalDist(0, math.sqrt(2) * scatter)
                return sum(two.cdf(-margin - room) for room in rooms) / len(rooms)""",
    },
    "stop_after": {
        "the second look is not counted": """
            def stop_after(losses, limits, margin, looks):
                for step, limit in limits.items():
                    if step in losses and losses[step] > limit * (1 + margin):
                        return step""",
        "not in a row": """
            def stop_after(losses, limits, margin, looks):
                missed = 0
                for step, limit in limits.items():
                    missed += step in losses and losses[step] > limit * (1 + margin)
                    if missed == looks:
                        return step""",
        "the first of the two": """
            def stop_after(losses, limits, margin, looks):
                row = []
                for step, limit in limits.items():
                    behind = step in losses and losses[step] > limit * (1 + margin)
                    row = row + [step] if behind else []
                    if len(row) == looks:
                        return row[0]""",
        "the margin forgotten": """
            def stop_after(losses, limits, margin, looks):
                missed = 0
                for step, limit in limits.items():
                    missed = missed + 1 if step in losses and losses[step] > limit else 0
                    if missed == looks:
                        return step""",
        "a run that is short is asked all the same": """
            def stop_after(losses, limits, margin, looks):
                missed = 0
                for step, limit in limits.items():
                    newest = [loss for n, loss in losses.items() if n <= step][-1]
                    missed = missed + 1 if newest > limit * (1 + margin) else 0
                    if missed == looks:
                        return step""",
    },
    "cost_of_comparison": {
        "questions of their own": """
            def cost_of_comparison(first, second, points, usd):
                variance = np.var(first, ddof=1) + np.var(second, ddof=1)
                return usd * math.ceil(variance * (2.802 * 100 / points) ** 2)""",
        "found half of the time": """
            def cost_of_comparison(first, second, points, usd):
                variance = np.subtract(second, first).var(ddof=1)
                return usd * math.ceil(variance * (1.96 * 100 / points) ** 2)""",
        "the spread for the variance": """
            def cost_of_comparison(first, second, points, usd):
                spread = np.subtract(second, first).std(ddof=1)
                return usd * math.ceil(spread * (2.802 * 100 / points) ** 2)""",
        "paid for each model": """
            def cost_of_comparison(first, second, points, usd):
                variance = np.subtract(second, first).var(ddof=1)
                return 2 * usd * math.ceil(variance * (2.802 * 100 / points) ** 2)""",
        "parts of a question": """
            def cost_of_comparison(first, second, points, usd):
                variance = np.subtract(second, first).var(ddof=1)
                return usd * variance * (2.802 * 100 / points) ** 2""",
        "points taken for shares": """
            def cost_of_comparison(first, second, points, usd):
                variance = np.subtract(second, first).var(ddof=1)
                return usd * math.ceil(variance * (2.802 / points) ** 2)""",
    },
    "name_the_fault": {
        "by the size of the differences alone": """
            def name_the_fault(sound, broken, off_training, more_bits):
                size = np.abs(np.subtract(broken, sound)).mean()
                names = ("targets shifted", "asked as a chat", "rotary layout", "a token added")
                limits = (1.7, 1.81, 5, math.inf)
                if size < 0.01:
                    return "nothing"
                return next(name for name, limit in zip(names, limits) if size < limit)""",
        "the loss alone": """
            def name_the_fault(sound, broken, off_training, more_bits):
                if off_training < 1e-3:
                    return "nothing"
                return ("targets shifted", "rotary layout")[bool(more_bits > 0.01)]""",
        "without the bits": """
            def name_the_fault(sound, broken, off_training, more_bits):
                differences = np.subtract(broken, sound)
                if np.abs(differences).mean() < 0.01:
                    return "nothing"
                if off_training > 1e-3:
                    return ("targets shifted", "rotary layout")[bool(off_training > 0.03)]
                return ("asked as a chat", "a token added")[bool(differences.mean() < -4)]""",
        "any bit more is the weights": """
            def name_the_fault(sound, broken, off_training, more_bits):
                differences = np.subtract(broken, sound)
                if np.abs(differences).mean() < 0.01:
                    return "nothing"
                if more_bits > 1e-4:
                    return "rotary layout"
                if off_training > 1e-3:
                    return "targets shifted"
                return ("asked as a chat", "a token added")[bool(differences.mean() < -4)]""",
    },
    "which_stand": {
        "none": "def which_stand():\n    return dict.fromkeys('ABCDEFG', False)",
        "one error for two scores": """
            def which_stand():
                return {letter: letter in "BCE" for letter in "ABCDEFG"}""",
        "two errors for a pair": """
            def which_stand():
                return {letter: letter == "E" for letter in "ABCDEFG"}""",
        "nats a token": """
            def which_stand():
                return {letter: letter in "BDE" for letter in "ABCDEFG"}""",
        "a letter left out": "def which_stand():\n    return dict(B=True, E=True)",
    },
    "tokens_for": {
        "the floor forgotten": """
            def tokens_for(law, n, loss):
                return (law.B / loss) ** (1 / law.b)""",
        "the size forgotten": """
            def tokens_for(law, n, loss):
                left = loss - law.E
                return (law.B / left) ** (1 / law.b) if left > 0 else math.inf""",
        "always Chinchilla": """
            def tokens_for(law, n, loss):
                return 20 * n""",
        "a complex number of tokens": """
            def tokens_for(law, n, loss):
                left = abs(loss - law.E - law.A / n**law.a)
                return (law.B / left) ** (1 / law.b) if left else math.inf""",
        "the wrong power": """
            def tokens_for(law, n, loss):
                left = loss - law.E - law.A / n**law.a
                return (law.B / left) ** law.b if left > 0 else math.inf""",
    },
    "floors_without": {
        "the whole fit for all": """
            def floors_without(points):
                floor = fit_law(points, boots=2).law.E
                return {n: floor for n in {*points[:, 0]}}""",
        "the next size left out": """
            def floors_without(points):
                sizes = sorted({*points[:, 0]})
                return {
                    n: fit_law(points[points[:, 0] != other], boots=2).law.E
                    for n, other in zip(sizes, sizes[1:] + sizes[:1])
                }""",
        "a budget left out": """
            def floors_without(points):
                return {d: 0.45 for d in {*points[:, 1]}}""",
        "the floor of the law that made them": """
            def floors_without(points):
                return {n: 0.45 for n in {*points[:, 0]}}""",
        "A instead of E": """
            def floors_without(points):
                return {
                    n: fit_law(points[points[:, 0] != n], boots=2).law.A
                    for n in {*points[:, 0]}
                }""",
    },
    "own_forecast": {
        "anything may happen": """
            def own_forecast(points, n, d):
                return 0.1, 1.0, 9.0""",
        "the law's range without the noise of the run": """
            def own_forecast(points, n, d):
                fit = fit_law(points, boots=100)
                return fit.interval(lambda law: law(n, d))""",
        "too sure": """
            def own_forecast(points, n, d):
                middle = fit_law(points, boots=100).forecast(n, d)[1]
                return 0.99 * middle, middle, 1.01 * middle""",
        "the mean of all losses": """
            def own_forecast(points, n, d):
                middle, spread = points[:, 2].mean(), points[:, 2].std()
                return middle - 1.64 * spread, middle, middle + 1.64 * spread""",
        "size and tokens changed over": """
            def own_forecast(points, n, d):
                return fit_law(points, boots=100).forecast(d, n)""",
    },
    "chance_of_so_few": {
        "certain": """
            def chance_of_so_few(held, asked, level=0.9):
                return 1.0""",
        "exactly so many": """
            def chance_of_so_few(held, asked, level=0.9):
                return math.comb(asked, held) * level**held * (1 - level) ** (asked - held)""",
        "fewer, and not so many": """
            def chance_of_so_few(held, asked, level=0.9):
                return sum(
                    math.comb(asked, k) * level**k * (1 - level) ** (asked - k)
                    for k in range(held)
                )""",
        "the share that held": """
            def chance_of_so_few(held, asked, level=0.9):
                return held / asked""",
        "the orders left out": """
            def chance_of_so_few(held, asked, level=0.9):
                return sum(level**k * (1 - level) ** (asked - k) for k in range(held + 1))""",
    },
    "ladders_needed": {
        "one error": """
            def ladders_needed(truth, level=0.9):
                return math.ceil(level * (1 - level) / (level - truth) ** 2)""",
        "rounded down": """
            def ladders_needed(truth, level=0.9):
                return math.floor(4 * level * (1 - level) / (level - truth) ** 2)""",
        "the truth's scatter": """
            def ladders_needed(truth, level=0.9):
                return math.ceil(4 * truth * (1 - truth) / (level - truth) ** 2)""",
        "the gap not squared": """
            def ladders_needed(truth, level=0.9):
                return math.ceil(4 * level * (1 - level) / (level - truth))""",
        "always sixty": """
            def ladders_needed(truth, level=0.9):
                return 60""",
    },
    "smallest_within": {
        "half the best": """
            def smallest_within(law, flops, slack):
                return optimal(law, flops)[0] / 2""",
        "tokens as they are": """
            def smallest_within(law, flops, slack):
                n, d = optimal(law, flops)
                limit = law(n, d) + slack
                while law(n * 0.99, d) <= limit:
                    n *= 0.99
                return n""",
        "a coarse grid": """
            def smallest_within(law, flops, slack):
                n, d = optimal(law, flops)
                limit = law(n, d) + slack
                while law(n / 1.2, flops / 6 / (n / 1.2)) <= limit:
                    n /= 1.2
                return n""",
        "the largest": """
            def smallest_within(law, flops, slack):
                n, d = optimal(law, flops)
                limit = law(n, d) + slack
                while law(n * 1.01, flops / 6 / (n * 1.01)) <= limit:
                    n *= 1.01
                return n""",
    },
    "sure_stop": {
        "the middle": """
            def sure_stop(rows, least):
                return next((r for r in rows if r["buys"] < least), None)""",
        "the low end": """
            def sure_stop(rows, least):
                return next((r for r in rows if r["low"] < least), None)""",
        "the last row": """
            def sure_stop(rows, least):
                return rows[-1]""",
        "the flag": """
            def sure_stop(rows, least):
                return next((r for r in rows if r["stop"]), None)""",
    },
    "equal_from": {
        "below zero instead of never": """
            def equal_from(large, small):
                (n, d), (m, e) = large, small
                return 3 * (m * e - n * d) / (n - m)""",
        "service costs what training does": """
            def equal_from(large, small):
                (n, d), (m, e) = large, small
                return max(0.0, (m * e - n * d) / (n - m))""",
        "tokens compared, not FLOPs": """
            def equal_from(large, small):
                (n, d), (m, e) = large, small
                return max(0.0, 3 * (e - d))""",
        "the size of the large one only": """
            def equal_from(large, small):
                (n, d), (m, e) = large, small
                return max(0.0, 3 * (m * e - n * d) / n)""",
        "the pair of the page": "def equal_from(large, small):\n    return 1.8e11",
    },
    "passes_worth": {
        "the mean of all passes": """
            def passes_worth(unique, share):
                p = 1
                while effective_tokens(unique, (p + 1) * unique) >= share * (p + 1) * unique:
                    p += 1
                return p""",
        "one too many": """
            def passes_worth(unique, share):
                p = 1
                while True:
                    worth = effective_tokens(unique, p * unique)
                    if worth - effective_tokens(unique, (p - 1) * unique) < share * unique:
                        return p
                    p += 1""",
        "no whole number": """
            def passes_worth(unique, share):
                return 1 - REPEATS * math.log(share)""",
        "a text of one token": """
            def passes_worth(unique, share):
                p = 1
                while effective_tokens(1, p + 1) - effective_tokens(1, p) >= share * unique:
                    p += 1
                return p""",
        "four, as everybody says": "def passes_worth(unique, share):\n    return 4",
    },
    "fit_repeats": {
        "that of the page": "def fit_repeats(runs, power):\n    return REPEATS",
        "no floor": """
            def fit_repeats(runs, power):
                unique, read, loss = np.array(runs).T
                best = math.inf, 0.0
                for repeats in np.geomspace(1, 200, 400):
                    gone = np.exp(-(read / unique - 1) / repeats)
                    worth = unique * (1 + repeats * (1 - gone))
                    x = worth**-power
                    error = np.square((x @ loss) / (x @ x) * x - loss).sum()
                    best = min(best, (error, repeats))
                return best[1]""",
        "too coarse": """
            def fit_repeats(runs, power):
                unique, read, loss = np.array(runs).T
                best = math.inf, 0.0
                for repeats in (1, 5, 10, 20, 50, 100):
                    gone = np.exp(-(read / unique - 1) / repeats)
                    x = (unique * (1 + repeats * (1 - gone))) ** -power
                    error = np.square(np.polyval(np.polyfit(x, loss, 1), x) - loss).sum()
                    best = min(best, (error, repeats))
                return best[1]""",
        "the first pass counted as a repeat": """
            def fit_repeats(runs, power):
                unique, read, loss = np.array(runs).T
                best = math.inf, 0.0
                for repeats in np.geomspace(1, 200, 400):
                    gone = np.exp(-(read / unique) / repeats)
                    x = (unique * (1 + repeats * (1 - gone))) ** -power
                    error = np.square(np.polyval(np.polyfit(x, loss, 1), x) - loss).sum()
                    best = min(best, (error, repeats))
                return best[1]""",
    },
    "answers_to_pay": {
        "an hour, not a day": """
            def answers_to_pay(usd_per_hour, usd_per_million, tok_s, length=1_000):
                return usd_per_hour / usd_per_million * 1e6 / length""",
        "as if only busy seconds were paid": """
            def answers_to_pay(usd_per_hour, usd_per_million, tok_s, length=1_000):
                own = usd_per_hour / 3600 / tok_s * 1e6
                return 0.0 if own < usd_per_million else math.inf""",
        "the speed forgotten": """
            def answers_to_pay(usd_per_hour, usd_per_million, tok_s, length=1_000):
                return 24 * usd_per_hour / usd_per_million * 1e6 / length""",
        "every answer a thousand tokens": """
            def answers_to_pay(usd_per_hour, usd_per_million, tok_s, length=1_000):
                tokens = 24 * usd_per_hour / usd_per_million * 1e6
                return math.inf if tokens > 86_400 * tok_s else tokens / 1_000""",
    },
    "taught_tokens": {
        "the teacher asked in every pass": """
            def taught_tokens(tokens, student, teacher, passes=1):
                return tokens * 6 * student / (6 * student + 2 * teacher)""",
        "the teacher is trained, too": """
            def taught_tokens(tokens, student, teacher, passes=1):
                return tokens * 6 * student / (6 * student + 6 * teacher / passes)""",
        "different tokens only": """
            def taught_tokens(tokens, student, teacher, passes=1):
                return tokens / passes * 6 * student / (6 * student + 2 * teacher / passes)""",
        "the factor, not the share": """
            def taught_tokens(tokens, student, teacher, passes=1):
                return tokens * (6 * student + 2 * teacher / passes) / (6 * student)""",
    },
    "most_experts": {
        "the shared ones forgotten": """
            def most_experts(shared, expert, gb, size=14):
                return max(0, int(gb * 1e9 / size / expert))""",
        "rounded up": """
            def most_experts(shared, expert, gb, size=14):
                return max(0, int((gb * 1e9 / size - shared) / expert) + 1)""",
        "below zero": """
            def most_experts(shared, expert, gb, size=14):
                return int((gb * 1e9 / size - shared) / expert)""",
        "bytes of the weights only": """
            def most_experts(shared, expert, gb, size=14):
                return max(0, int((gb * 1e9 / 2 - shared) / expert))""",
    },
    "text_kib": {
        "every layer has a window": """
            def text_kib(tokens, layers, full, window, kib):
                return kib * layers * min(tokens, window)""",
        "a window is kept whole, however short the text": """
            def text_kib(tokens, layers, full, window, kib):
                return kib * (full * tokens + (layers - full) * window)""",
        "full layers and others mixed up": """
            def text_kib(tokens, layers, full, window, kib):
                return kib * ((layers - full) * tokens + full * min(tokens, window))""",
        "a token, not a text": """
            def text_kib(tokens, layers, full, window, kib):
                return kib * (full + (layers - full) * min(tokens, window) / tokens)""",
    },
    "experts_at_work": {
        "the router forgotten": """
            def experts_at_work(layers, d_model, d_ff, n, active):
                expert = 3 * d_model * d_ff
                return layers * n * expert, layers * active * expert""",
        "one block": """
            def experts_at_work(layers, d_model, d_ff, n, active):
                expert, router = 3 * d_model * d_ff, d_model * n
                return n * expert + router, active * expert + router""",
        "a part of the router": """
            def experts_at_work(layers, d_model, d_ff, n, active):
                one = 3 * d_model * d_ff + d_model
                return layers * n * one, layers * active * one""",
        "all work": """
            def experts_at_work(layers, d_model, d_ff, n, active):
                memory = layers * (3 * d_model * d_ff * n + d_model * n)
                return memory, memory""",
        "two matrices": """
            def experts_at_work(layers, d_model, d_ff, n, active):
                expert, router = 2 * d_model * d_ff, d_model * n
                return layers * (n * expert + router), layers * (active * expert + router)""",
    },
}
DEEPER = (
    "after_llama",
    "before_you_rent",
    "dollars_by_a_law",
    "how_much_room_a_gate_needs",
    "how_often_a_range_holds",
    "recipes_of_larger_runs",
    "what_the_answers_cost",
)
ATTACKED = [path for path in CHAPTERS if path.parent.name == "season2" or path.stem in DEEPER]
PAGES = {name: path for path in ATTACKED for name in exercises(path)[0] if name in WRONG}


def test_every_check_of_season_2_is_attacked():
    assert (
        {name for page in ATTACKED for name in exercises(page)[0]} == WRONG.keys() == PAGES.keys()
    )
    assert min(map(len, WRONG.values())) >= 3


@pytest.mark.parametrize("name, answer", cases(WRONG))
def test_a_wrong_answer_is_refused_in_words(name, answer):
    assert len(refusal(PAGES[name], name, answer).split()) >= 3, "a refusal says what is wrong"
