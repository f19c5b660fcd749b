"""The laws of the house. Each is a function that takes a folder and returns what breaks it; each is
also shown a planted violation."""

import ast
import io
import json
import re
import shutil
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest
from cells import course_pages, python

CHAPTERS = [
    "00_core",
    "season1/00",
    "season1/01",
    "season1/02",
    "season1/03",
    "season1/04",
    "season1/05",
    "season1/06",
    "season2/01",
    "season2/02",
    "season2/03",
    "season2/04",
    "season2/05",
    "season2/06",
    "season3/01",
    "season3/02",
    "season3/03",
    "season3/04",
    "season3/05",
    "season3/06",
    "season3/07",
    "season3/08",
]
# The rooms of the house, from the ground up. A room imports only rooms of the rows above it here;
# rooms of one row do not know each other. The first row are plain modules.
ROWS = [
    ["core", "host", "night", "device", "files", "progress", "table", "templates"],
    ["model", "data"],
    ["record", "chat"],
    ["prep", "report", "share"],
    ["train"],
    ["tune"],
    ["plans"],
    ["evals", "forensics"],
    ["guards"],
    ["lab"],
    ["cli"],
    ["__main__"],
]
FORBIDDEN = {  # what a module must not know although its room may
    "train.loop": {"model.gpt", "model.llama", "data.tokenizer"},
}
UNTYPED_ROOMS = set()  # with arguments that have no type yet: none is left
# Public names that nothing in the package uses, and why they stay. Whatever else is unused belongs
# in the page or the test that needs it.
FOR_USERS = {
    # the paid pages: what a base costs to teach, and where the 1B lies
    "plans.bases": "base_table plan_with_base",
    "plans.paid_steps": "decide_run step_table verdict_table",
    "plans.live_picture": "LossPicture TalkPicture draw_plan",
    "plans.talk_results": "answers_table measured_table phase_bill",
    "guards.before_paying": "ask_before_renting ask_before_steps evidence_table rehearse_apart",
    "plans.paid_walk": "walk_paid",
    "prep.obtain": "corpus_recipe obtain_shards toy_recipe",
    "evals.recheck": "recheck_run",
    # a bill of your own: cards in a row, and what to ask before renting
    "plans.economics": "checklist scale_out",
    # published runs beside their forecasts, on the pages of costs
    "plans.speeds": "coverage_text grade_speeds speed_table",
    # the claims, in the tables of every page that shows some
    "plans.published": "claim_table conflict_table judge_all tally",
    # a ladder of your own, from its data to a forecast and its grade
    "plans.ladder": "known_source train_ladder write_forecast",
    "plans.league": "grade_entry league_table seal_entry",
    "plans.scaling": "optimal stop_when",
    # a budget of your own: text that is read again, and the size for a number of answers
    "plans.repeated_text": "worth_as_new",
    "plans.total_cost": "cheapest_size implied_serving lifetime_flops tokens_to_reach",
    # the first text of the course, as one call
    "data.text": "shakespeare",
    # to judge a tokenizer: several chapters do
    "data.tokenizer_report": "stratified tokenizer_report",
    # how loss depends on the place in the window, texts side by side, how sure a score is
    "evals.scoring": "by_position",
    "evals.samples": "sample_page",
    "evals.scores": "questions_needed smallest",
    # chapter 1's model, which the library's is held against
    "model.first_gpt": "FirstGPT",
    # how figures of the chapters look
    "report.plots": "chapter_style",
    # whether a notebook runs at reduced scale
    "files": "reduced",
    # an alarm for a card that others use too
    "guards.alarms": "check_room",
    # ends the rent of a machine when a notebook is done
    "host": "WhenDone",
    # what the pages draw of receipts and exhibits
    "lab.bench.ladder": "plot_ladder",
    "lab.bench.machine": "peaks",
    "lab.bench.rates": "best_rate line_losses",
    "lab.bench.speed": "plot_roofline",
    "lab.museum.bugs": "EXHIBITS",
    "lab.museum.machines": "INFRA",
    # another library's near duplicates, beside the chapter's own
    "lab.bench.prep": "datasketch_repeats",
    # the last cell of a page with exercises
    "lab.grade": "show_open_exercises",
    # what the chapters about talking start from
    "tune.sums_world": "SumsWorld",
    # the small corpora that chapters read
    "prep.practice": "practice_corpora",
    # what a KV cache takes: an exercise asks for it
    "model.counts": "kv_bytes",
    # the closing tables of chapter 5
    "report.lessons": "colab_bill lesson_table",
    # several runs on one axis, what they cost, and what they wrote step by step, in a notebook
    "report.results": "bill_table compare_runs milestone_table replay_prompts",
    "report.watch": "show_progress",
    # and the weights that a page really has, which a tool and tests compare with
    "share.demo": "as_picture continue_with_chances rounded",
    # pictures that move, for a chapter or a notebook of your own
    "share.frames": "attention_stepper learning_rate_slider previous_letter_weights "
    "training_scrubber",
    # teaching a model to talk, from a notebook
    "tune.lora": "load_lora merge_lora",
    "tune.answers": "answer_loss",
    "tune.losses": "preferred_end",
    # objectives for `train`, one beside the other on the page "Which method?"
    "tune.on_policy": "ClippedObjective DistillationObjective OnlineDpoObjective "
    "RejectionObjective",
}
SECTIONS = [
    "Where we are",
    "The problem",
    "Idea",
    "All together",
    "Published and measured",
    "Takeaways",
    "Exercises",
]
ABSENT = ["nbdev", "fastcore", "execnb", "IPython", "ipywidgets", "datasets", "transformers"]


def notebooks(root):
    return sorted(p for p in (root / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)


@cache
def parsed(text):
    "The syntax tree of a module, which no law changes; most laws read all of them"
    return ast.parse(text)


@cache
def opened(text):
    "The cells of a notebook, likewise"
    return json.loads(text)["cells"]


def cells(path, kind="code"):
    return [c for c in opened(path.read_text(encoding="utf-8")) if c["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def directive(cell, names):
    return re.search(rf"^#\s*\|\s*({names})\b", source(cell), re.M)


def is_program(path):
    "Whether a file is what a child process runs: written by hand, in a folder `programs`"
    return path.parent.name == "programs"


def module_files(root):
    """Dotted name below gpub -> its file, without packages' fronts, nbdev's index and the programs
    of child processes"""
    package = root / "gpub"
    return {
        ".".join(p.relative_to(package).with_suffix("").parts): p
        for p in sorted(package.rglob("*.py"))
        if p.stem not in ("__init__", "_modidx") and not is_program(p)
    }


def imported_names(path, name):
    """(module below gpub, name or None) for every import of the package in a file, wherever it
    stands"""
    yield from imported_by(parsed(path.read_text(encoding="utf-8")), name)


def imported_by(tree, name):
    "The same of a syntax tree"
    package = name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name.startswith("gpub."):
                    yield a.name.removeprefix("gpub."), None
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
            elif node.module and node.module.split(".")[0] == "gpub":
                base = []
            else:
                continue
            inner = (
                (node.module or "").removeprefix("gpub").strip(".")
                if not node.level
                else node.module
            )
            base = ".".join([*base, *(inner.split(".") if inner else [])])
            for a in node.names:
                yield base, a.name


def imports(root):
    "Module -> the gpub modules it imports anywhere, inside functions too"
    files = module_files(root)
    graph = {name: set() for name in files}
    for name, path in files.items():
        for base, what in imported_names(path, name):
            dotted = {base, f"{base}.{what}".strip(".")}
            graph[name] |= dotted & graph.keys()
    return graph


def room(name):
    return name.split(".")[0]


def off_the_rows(root, rows=ROWS):
    "Imports from a room that is not above, and private names that leave their room"
    row = {name: i for i, names in enumerate(rows) for name in names}
    out = []
    for name, path in module_files(root).items():
        for base, what in imported_names(path, name):
            there = room(base or what)
            if there not in row or there == room(name):
                continue
            if room(name) not in row:
                out.append(f"{name} stands in no row of the house")
            elif row[there] > row[room(name)]:
                out.append(f"{name} imports {base}.{what} from a room above its own")
            elif row[there] == row[room(name)] and row[there] > 0:
                out.append(f"{name} imports {base}.{what} from a room of its own row")
            if what and what.startswith("_") and not what.startswith("__"):
                out.append(f"{name} imports {base}.{what}, which is private there")
    return out


def click_outside(root):
    "Only the command line knows click"
    return [
        f"{name} imports click"
        for name, path in module_files(root).items()
        if room(name) != "cli" and re.search(r"^\s*(import|from) click\b", path.read_text(), re.M)
    ]


def definition_names(node):
    "What a statement of a module defines"
    if isinstance(node, ast.Assign):
        return {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return {getattr(node, "name", None) or getattr(getattr(node, "target", None), "id", None)}


def public_names(tree):
    "What a module lists in `__all__`"
    for node in tree.body:
        if isinstance(node, ast.Assign) and "__all__" in definition_names(node):
            return ast.literal_eval(node.value)
    return []


def two_meanings(root):
    "Public names that two modules define"
    owners = {}
    for name, path in module_files(root).items():
        for public in public_names(parsed(path.read_text(encoding="utf-8"))):
            owners.setdefault(public, []).append(name)
    return [
        f"{public} is defined by {', '.join(at)}" for public, at in owners.items() if len(at) > 1
    ]


def names_loaded(node):
    "Names and attributes that are read anywhere inside"
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            yield n.id
        if isinstance(n, ast.Attribute):
            yield n.attr


def unused(root, kept=FOR_USERS):
    """Public names that nothing in the package uses, outside their own definition: they belong in
    the page or the test that needs them, unless they are there for users; names in that list which
    are used, or gone"""
    files = module_files(root) | {
        f"{p.parent.relative_to(root / 'gpub').as_posix().replace('/', '.')}.{p.stem}": p
        for p in (root / "gpub").rglob("*.py")
        if is_program(p) or p == root / "gpub/__init__.py"
    }
    trees = {name: parsed(p.read_text(encoding="utf-8")) for name, p in files.items()}
    taken = set()  # (module, name)
    for name, tree in trees.items():
        imported = list(imported_names(files[name], name.lstrip(".")))
        taken |= set(imported)
        whole = {f"{base}.{what}".strip(".") for base, what in imported} & trees.keys()
        taken |= {(m, attribute) for m in whole for attribute in names_loaded(tree)}
        for node in tree.body:
            taken |= {(name, used) for used in names_loaded(node)} - {
                (name, own) for own in definition_names(node)
            }
    found = {
        f"{module}.{name}"
        for module, tree in trees.items()
        for node in tree.body
        for name in definition_names(node) & {*public_names(tree)}
        if (module, name) not in taken and not [*commands(node)]
    }
    listed = {f"{module}.{name}" for module, names in kept.items() for name in names.split()}
    return [f"nothing in the package uses {name}" for name in sorted(found - listed)] + [
        f"{name} is used, or gone: take it off FOR_USERS" for name in sorted(listed - found)
    ]


def reach(graph, name):
    "Everything `name` imports, directly or through others"
    seen, todo = set(), [name]
    while todo:
        new = graph[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


def cycles(root):
    graph = imports(root)
    return [
        f"{m} imports itself through {sorted(reach(graph, m))}"
        for m in graph
        if m in reach(graph, m)
    ]


def exports_to(path):
    "The module a notebook writes, None for a page without code"
    found = [
        m[1]
        for c in cells(path)
        if (m := re.search(r"^#\|\s*default_exp\s+(\S+)", source(c), re.M))
    ]
    assert len(found) < 2, f"{path}: more than one default_exp: {found}"
    return found[0] if found else None


def chapter_numbers(root):
    "Module -> place of its chapter in the course; library modules have none"
    place = {
        p: i
        for i, c in enumerate(CHAPTERS)
        for p in notebooks(root)
        if p.relative_to(root / "nbs").as_posix().startswith(c)
    }
    return {exports_to(p): i for p, i in place.items() if exports_to(p)}


def looks_ahead(root):
    """A chapter that imports a later one, itself or through other chapters; plumbing between them
    may know all models"""
    graph, number = imports(root), chapter_numbers(root)
    chapters = {m: graph[m] & number.keys() for m in graph if m in number}
    return [
        f"{m} (chapter {CHAPTERS[number[m]]}) depends on {d} (chapter {CHAPTERS[number[d]]})"
        for m in chapters
        for d in reach(chapters, m)
        if number[d] > number[m]
    ]


def wrong_rooms(root):
    graph = imports(root)
    return [
        f"{m} must not import {sorted(bad)}"
        for m, banned in FORBIDDEN.items()
        if (bad := graph.get(m, set()) & banned)
    ]


def twice_exported(root):
    modules = [m for p in notebooks(root) if (m := exports_to(p))]
    return [f"{m} has two notebooks" for m in {m for m in modules if modules.count(m) > 1}] + [
        f"gpub/{path.relative_to(root / 'gpub').as_posix()} has no notebook"
        for name, path in module_files(root).items()
        if name not in modules
    ]


def defined(tree):
    """Names a cell defines at top level, and the words that count as using them: a command of the
    command line is used by its name in a string"""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, {node.name, *commands(node)}
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        for t in targets:
            yield from ((n.id, {n.id}) for n in ast.walk(t) if isinstance(n, ast.Name))


def commands(node):
    "What `@cli.command()` or `@cli.command('name')` over a function makes it answer to, quoted"
    for d in getattr(node, "decorator_list", []):
        if isinstance(d, ast.Call) and getattr(d.func, "attr", "") in ("command", "group"):
            yield (
                f'"{d.args[0].value}"' if d.args else f'"{node.name.strip("_").replace("_", "-")}"'
            )


def used(tree):
    "Names and words a cell really uses: not imports, not `show_doc`"
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "show_doc":
            node.args = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        if isinstance(node, ast.Attribute):
            yield node.attr
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (f'"{w}"' for w in re.findall(r"[\w-]+", node.value))


def unexercised(root):
    out = []
    for path in notebooks(root):
        exported = [c for c in cells(path) if directive(c, "exports?")]
        words = {
            w
            for c in cells(path)
            if not directive(c, r"exports?|exporti|eval:\s*false")
            for w in used(python(source(c)))
        }
        inside = {
            n.id
            for c in exported
            for n in ast.walk(python(source(c)))
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        for name, uses in (d for c in exported for d in defined(python(source(c)))):
            if name.isupper() and name in inside:
                continue  # a constant is exercised by the function that reads it
            if not name.startswith("_") and not uses & words:
                out.append(
                    f"{path.relative_to(root)}: {name} is exported and no cell of the notebook "
                    "uses it"
                )
    return out


def mixed_imports(root):
    "Cells with imports and other code: building the pages runs every cell that imports, alone"
    out = []
    for path, cell in (
        (p, c)
        for p in notebooks(root)
        for c in cells(p)
        if not directive(c, r"export[si]?|eval:\s*false")
    ):
        tree, kinds = python(source(cell)), (ast.Import, ast.ImportFrom)
        if any(isinstance(n, kinds) for n in ast.walk(tree)) and not all(
            isinstance(n, (*kinds, ast.Pass)) for n in tree.body
        ):
            out.append(
                f"{path.relative_to(root)}: give the import a cell of its own: "
                f"{source(cell).strip()[:60]!r}"
            )
    return out


def deeper_template(sections):
    "A deeper page may leave out the problem, the run, the blog and the appendix"
    left_out = {"The problem", "All together", "Published and measured"}
    return [s for s in SECTIONS if s not in left_out or s in sections]


def off_template(root):
    out, pages = [], {*course_pages(root)}
    for path in notebooks(root):
        md = [source(c) for c in cells(path, "markdown")]
        if not md or not re.match(r"# .+\n+> .+", md[0]):
            out.append(f'{path.name}: must open with "# Title" and "> one line" in one cell')
        if path not in pages:
            continue
        text = re.sub(r"^```.*?^```", "", "\n\n".join(md), flags=re.M | re.S)
        heads = re.findall(r"^## (.+)$", text, re.M)
        order = [next((s for s in SECTIONS if h.startswith(s)), h) for h in heads]
        short = [h for i, h in enumerate(order) if i == 0 or h != order[i - 1]]
        template = SECTIONS
        if path.parent.name == "deeper":
            template = deeper_template(short)
        if short not in (template, [*template, "Appendix"]):
            out.append(f"{path.name}: sections are {short}, the template is {template}")
        ideas = [int(n) for h in heads for n in re.findall(r"^Idea (\d+)", h)]
        if ideas != list(range(1, order.count("Idea") + 1)):
            out.append(f"{path.name}: ideas are numbered {ideas}")
    return out


def heavy(root, one=100_000, total=1_500_000):
    "Stored outputs that are too large, or are errors"
    out = []
    for path in notebooks(root):
        stored = [o for c in cells(path) for o in c.get("outputs", [])]
        sizes = [len(json.dumps(o)) for o in stored]
        out += [f"{path.name}: a stored output of {s:,} bytes" for s in sizes if s > one]
        if sum(sizes) > total:
            out.append(f"{path.name}: {sum(sizes):,} bytes of stored outputs")
        out += [
            f"{path.name}: a stored error, {o['ename']}"
            for o in stored
            if o["output_type"] == "error"
        ]
    return out


def pickles(root):
    "Ways to run someone else's code by loading their file"
    out = []
    for path in sorted((root / "gpub").rglob("*.py")):
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            names = (
                [a.name for a in node.names] + [getattr(node, "module", None) or ""]
                if isinstance(node, (ast.Import, ast.ImportFrom))
                else []
            )
            bad = {n.split(".")[0] for n in names} & {
                "pickle",
                "cPickle",
                "dill",
                "cloudpickle",
                "joblib",
                "shelve",
                "marshal",
            }
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "torch.load",
                "torch.save",
            ):
                bad |= {ast.unparse(node)}
            if (
                isinstance(node, ast.keyword)
                and node.arg == "allow_pickle"
                and getattr(node.value, "value", True)
            ):
                bad |= {"allow_pickle"}
            out += [f"{path.name}:{getattr(node, 'lineno', node)}: {b}" for b in bad]
    return out


POINTS_ELSEWHERE = re.compile(r"^# ?(as (for|in) `[^`]+`|as above|the same|likewise)$")


def unexplained(root):
    """Public names without a docstring, and comments that only point at another place; an argument
    has a comment where its name and type leave something open"""
    out = []
    for path in sorted((root / "gpub").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = parsed(text)
        public = public_names(tree)

        def read(node, name):
            decorators = {
                getattr(getattr(d, "func", d), "attr", getattr(getattr(d, "func", d), "id", ""))
                for d in node.decorator_list
            }
            if "exhibit" in decorators:
                return  # its decorator says what it is
            known = name.endswith(("__init__", ".forward"))  # of every class, of every module
            if not known and not ast.get_docstring(node):
                out.append(f"{path.name}: {name} has no docstring")
            if isinstance(node, ast.ClassDef):
                for f in node.body:
                    if isinstance(f, ast.FunctionDef) and not f.name.startswith("_"):
                        read(f, f"{name}.{f.name}")

        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in public:
                read(node, node.name)
        out.extend(
            f"{path.name}:{t.start[0]}: {t.string!r} points elsewhere"
            for t in tokenize.generate_tokens(io.StringIO(text).readline)
            if t.type == tokenize.COMMENT and POINTS_ELSEWHERE.match(t.string)
        )
    return out


def long_winded(root, most=45):
    "Functions of more than `most` statements"
    return [
        f"{p.name}: {n.name} has {count} statements"
        for p in sorted((root / "gpub").rglob("*.py"))
        for n in ast.walk(parsed(p.read_text(encoding="utf-8")))
        if isinstance(n, ast.FunctionDef)
        and (count := sum(isinstance(x, ast.stmt) for x in ast.walk(n)) - 1) > most
    ]


def arguments(node):
    "The arguments of a function but `self` and `cls`"
    a = node.args
    rest = [*a.kwonlyargs, *(star for star in (a.vararg, a.kwarg) if star)]
    return [x for x in [*a.posonlyargs, *a.args, *rest] if x.arg not in ("self", "cls")]


def untyped(root, rooms=UNTYPED_ROOMS):
    "Arguments without a type in the rooms that are done; a room that is done but still listed"
    faults, open_rooms = [], set()
    for path in sorted((root / "gpub").rglob("*.py")):
        name = room(".".join(path.relative_to(root / "gpub").with_suffix("").parts))
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            bare = [x.arg for x in arguments(node) if x.annotation is None]
            if bare and name in rooms:
                open_rooms.add(name)
            elif bare:
                faults.append(f"{path.name}: {node.name}({', '.join(bare)}) has no type")
    return faults + [
        f"{name} is typed throughout: take it off UNTYPED_ROOMS" for name in rooms - open_rooms
    ]


# Where widths are given by hand: the one layout of tables, and lines that rewrite themselves
WIDTHS = {"table", "progress", "prep.progress", "share.demo"}


def laid_out_by_hand(root):
    "Columns that are not a `Table`: a module pads its cells itself"
    out = []
    for name, path in module_files(root).items():
        if name in WIDTHS:
            continue
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("ljust", "rjust"):
                out.append(f"{name}, line {node.lineno}: {node.attr}; use gpub.table")
            if isinstance(node, ast.FormattedValue) and node.format_spec:
                spec = ast.unparse(node.format_spec)[2:-1]
                if re.match(r"[<>^]|[1-9]\d", spec):
                    out.append(f"{name}, line {node.lineno}: a width of {spec}; use gpub.table")
    return out


def files(root):
    "What is committed, or would be"
    said = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    listed = (
        [root / n for n in said.stdout.split("\0") if n]
        if said.returncode == 0
        else root.rglob("*")
    )
    return [
        p
        for p in listed
        if p.is_file() and not {".git", ".venv", "__pycache__"} & set(p.relative_to(root).parts)
    ]


def machine_paths(root):
    "Folders of the machine it was written on"
    place = re.compile(r"(?<![\w.])/(?:work|farm|root|Users/\w+|home/\w+)/|" + "farm-" + r"\w")
    out = []
    for path in files(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        out += [f"{path.relative_to(root)}: {m[0]}" for m in place.finditer(text)]
        if "../" + "shared" in text and path.relative_to(root).as_posix() != ".ci/run":
            out.append(f"{path.relative_to(root)}: ../" + "shared")
    return out


def without(root, block):
    """Import every module of the package in a new process, with the notebook tools blocked or only
    watched"""
    code = f"""
import sys, pkgutil, importlib
absent, block = {ABSENT}, {block}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in absent:
            raise ModuleNotFoundError(f'No module named {{name!r}} (blocked)', name=name)
if block: sys.meta_path.insert(0, Block())
import gpub
for m in pkgutil.walk_packages(gpub.__path__, 'gpub.'): importlib.import_module(m.name)
found = sorted({{m.split('.')[0] for m in sys.modules}} & set(absent))
sys.exit(f'imported: {{found}}' if found else 0)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1:] if done.returncode else []


def out_of_step(folder):
    "Export and clean a copy; name what differs from what was there"

    def made():
        return {p for p in (folder / "gpub").rglob("*.py") if not is_program(p)}

    before = {p: p.read_bytes() for p in {*notebooks(folder), *made()}}
    for p in made():
        if p != folder / "gpub/__init__.py":
            p.unlink()
    tool = Path(sys.executable).parent
    for name in ("nbdev_export", "nbdev_clean"):
        subprocess.run([tool / name], cwd=folder, check=True, capture_output=True)
    return [
        p.relative_to(folder).as_posix()
        for p in sorted({*before, *made()})
        if not p.exists() or before.get(p) != p.read_bytes()
    ]


def badly_written(root, *options):
    """What ruff finds: two statements on a line, lines that are too long, mistakes; and what it
    would lay out otherwise"""
    ruff = Path(sys.executable).parent / "ruff"
    out = []
    programs = [p.parent for p in root.glob("gpub/**/programs/__init__.py")]
    tasks = [["check", "--output-format", "concise", "."], ["format", "--check", "."]]
    if programs:  # they lie among modules that nbdev lays out
        tasks.append(["format", "--check", "--config", "format.exclude=[]", *programs])
    for task in tasks:
        done = subprocess.run(
            [ruff, *task, "--no-cache", "-q", *options],
            cwd=root,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            out += (done.stdout + done.stderr).strip().splitlines()
    return out


@pytest.mark.parametrize(
    "law",
    [
        cycles,
        looks_ahead,
        wrong_rooms,
        off_the_rows,
        click_outside,
        two_meanings,
        unused,
        twice_exported,
        unexercised,
        mixed_imports,
        off_template,
        heavy,
        pickles,
        unexplained,
        untyped,
        long_winded,
        laid_out_by_hand,
        badly_written,
        machine_paths,
    ],
    ids=lambda f: f.__name__,
)
def test_law(root, law):
    broken = law(root)
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.full(instead="test_works_without_notebook_tools")
def test_imports_no_notebook_tools(root):
    assert without(root, block=False) == []


def test_works_without_notebook_tools(root):
    assert without(root, block=True) == []


def test_modules_and_notebooks_in_step(copy):
    assert out_of_step(copy) == []


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def notebook(path, *texts, outputs=()):
    "A notebook whose cells starting with # and a space, or with >, are markdown"

    def cell(t):
        if t.startswith("# "):
            return dict(cell_type="markdown", source=t)
        return dict(cell_type="code", source=t, outputs=list(outputs))

    write(
        path,
        json.dumps(dict(cells=[cell(t) for t in texts], nbformat=4, nbformat_minor=5, metadata={})),
    )


CHAPTER = "# T\n> t\n\n" + "\n\n".join(f"## {s}" for s in SECTIONS).replace(
    "## Idea", "## Idea 1: x\n\n## Idea 2: y"
)


def test_cycle_is_found(tmp_path):
    write(tmp_path / "gpub/a.py", "from gpub.b import x")
    write(tmp_path / "gpub/b.py", "from gpub import c")
    write(tmp_path / "gpub/c.py", "import torch")
    assert not cycles(tmp_path)
    write(tmp_path / "gpub/c.py", "def f():\n    from .a import y")
    assert len(cycles(tmp_path)) == 3


def test_looking_ahead_is_found(tmp_path):
    for name, module in [
        ("season1/01_x", "model.gpt"),
        ("lib/shards", "data.shards"),
        ("season1/04_y", "train.loop"),
    ]:
        notebook(tmp_path / f"nbs/{name}.ipynb", f"#| default_exp {module}")
    for module in ("model/gpt", "data/shards"):
        write(tmp_path / f"gpub/{module}.py", "")
    write(tmp_path / "gpub/train/loop.py", "from ..data.shards import B")
    assert not looks_ahead(tmp_path) and not wrong_rooms(tmp_path)
    write(tmp_path / "gpub/model/gpt.py", "def f():\n    from gpub.train.loop import B")
    write(tmp_path / "gpub/train/loop.py", "from gpub.model.gpt import A")
    assert looks_ahead(tmp_path) == [
        "model.gpt (chapter season1/01) depends on train.loop (chapter season1/04)"
    ]
    assert wrong_rooms(tmp_path) == ["train.loop must not import ['model.gpt']"]


def test_orphan_and_twin_are_found(tmp_path):
    for n in "ab":
        notebook(tmp_path / f"nbs/{n}.ipynb", "#| default_exp one")
    write(tmp_path / "gpub/left.py", "")
    write(tmp_path / "gpub/room/programs/child.py", "")
    assert sorted(twice_exported(tmp_path)) == [
        "gpub/left.py has no notebook",
        "one has two notebooks",
    ]


@pytest.mark.parametrize(
    "cell, ok",
    [
        ("f(1)", True),
        ("assert g.f", True),
        ("import f", False),
        ("show_doc(f)", False),
        ("# f", False),
        ("#| eval: false\nf(1)", False),
        ('"f"', False),
    ],
)
def test_unexercised_is_found(tmp_path, cell, ok):
    notebook(
        tmp_path / "nbs/a.ipynb",
        "#| exports\ndef f(x): return x\n_private = 1",
        "%matplotlib inline\n1",
        cell,
    )
    assert (unexercised(tmp_path) == []) is ok


def test_unexercised_commands_and_constants(tmp_path):
    notebook(
        tmp_path / "nbs/a.ipynb",
        "#| export\n@cli.command()\ndef sample_(x): pass",
        '#| export\n@cli.command("go")\ndef went(): pass',
        "#| export\n@cli.group()\ndef bench(): pass",
        "#| export\nA, B = 1, 2\nC: int = 3",
        'run("gpub sample x; gpub go", A)',
    )
    assert [u.split()[1] for u in unexercised(tmp_path)] == ["bench", "B", "C"]


@pytest.mark.parametrize(
    "cell, ok",
    [
        ("import a, b\nfrom c import d\n%matplotlib inline", True),
        ("import a; a.f()", False),
        ("def f(): import a", False),
        ("#| export\nimport a; a.f()", True),
    ],
)
def test_mixed_imports_are_found(tmp_path, cell, ok):
    notebook(tmp_path / "nbs/a.ipynb", cell)
    assert (mixed_imports(tmp_path) == []) is ok


@pytest.mark.parametrize(
    "text, ok",
    [
        (CHAPTER, True),
        (CHAPTER.replace("> t", "t"), False),
        (CHAPTER.replace("## Takeaways", ""), False),
        (CHAPTER.replace("Idea 2", "Idea 3"), False),
        (CHAPTER + "\n## Extra", False),
    ],
)
def test_template_is_checked(tmp_path, text, ok):
    notebook(tmp_path / "nbs/season1/01_x.ipynb", text)
    assert (off_template(tmp_path) == []) is ok


@pytest.mark.parametrize(
    "text, ok",
    [
        (CHAPTER, True),
        (CHAPTER.replace("## The problem", "").replace("## All together", ""), True),
        (CHAPTER.replace("## Takeaways", ""), False),
        (CHAPTER.replace("## Exercises", ""), False),
        (CHAPTER.replace("Idea 2", "Idea 3"), False),
        (CHAPTER.replace("## The problem", "") + "\n## The problem", False),
        (CHAPTER + "\n## Appendix", True),
    ],
)
def test_template_of_a_deeper_page_is_checked(tmp_path, text, ok):
    notebook(tmp_path / "nbs/season1/deeper/x.ipynb", text)
    assert (off_template(tmp_path) == []) is ok


def test_heavy_and_error_outputs_are_found(tmp_path):
    notebook(
        tmp_path / "nbs/a.ipynb",
        "1",
        outputs=[
            dict(output_type="stream", text="x" * 100_001),
            dict(output_type="error", ename="ValueError"),
        ],
    )
    assert len(heavy(tmp_path)) == 2 and len(heavy(tmp_path, total=9)) == 3


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        'x = torch.load("f", weights_only=True)',
        "np.load(f, allow_pickle=True)",
    ],
)
def test_pickle_is_found(tmp_path, line):
    write(tmp_path / "gpub/a.py", '"No pickle here"\nnp.load(f, allow_pickle=False)\n')
    assert not pickles(tmp_path)
    write(tmp_path / "gpub/a.py", line)
    assert len(pickles(tmp_path)) == 1


@pytest.mark.parametrize(
    "text, faults",
    [
        ('def f(x):\n    "Gives"', 0),
        ('def f(\n    x, # as for `g`\n):\n    "Gives"', 1),
        ('def f(\n    x, # as for `g`, in bytes\n):\n    "Gives"', 0),
        ('def f():\n    "Gives"\n    x = 1 # the same', 1),
        ("def f(): pass", 1),
        ("def _f(x): pass", 0),
        ('class f:\n    "A"\n    def __init__(self, x): pass\n    def go(self): pass', 1),
        ('@cli.command()\ndef f(x):\n    "Does"', 0),
    ],
)
def test_unexplained_is_found(tmp_path, text, faults):
    write(tmp_path / "gpub/a.py", f'__all__ = ["f"]\n{text}\n')
    assert len(unexplained(tmp_path)) == faults


@pytest.mark.parametrize(
    "text, faults",
    [
        ("def f(x: int, *a: int, k: str = '', **kw: object): pass", 0),
        ("def f(x): pass", 1),
        ("def f(*a, k: int, **kw): pass", 1),
        ("class C:\n    def go(self, x: int): pass\n    def at(self, y): pass", 1),
        ("def f():\n    async def g(x): pass", 1),
    ],
)
def test_untyped_is_found(tmp_path, text, faults):
    write(tmp_path / "gpub/low/a.py", text)
    assert len(untyped(tmp_path, set())) == faults
    done = untyped(tmp_path, {"low"})
    assert done == ([] if faults else ["low is typed throughout: take it off UNTYPED_ROOMS"])


def test_long_function_is_found(tmp_path):
    write(tmp_path / "gpub/room/a.py", "def f():\n" + "    1\n" * 45)
    assert not long_winded(tmp_path)
    write(tmp_path / "gpub/room/a.py", "def f():\n" + "    1\n" * 46)
    assert len(long_winded(tmp_path)) == 1


@pytest.mark.parametrize(
    "line, faults",
    [
        ('x = f"{a:12}"', 1),
        ('x = f"{a:>6.1f}{b:<9}"', 2),
        ("x = a.rjust(9)", 1),
        ('x = f"{a:,.2f} {b:.3f} {c:08d} {d!r}"', 0),
    ],
)
def test_a_table_laid_out_by_hand_is_found(tmp_path, line, faults):
    write(tmp_path / "gpub/table.py", "x = a.ljust(9)\n")
    write(tmp_path / "gpub/room/a.py", line)
    assert len(laid_out_by_hand(tmp_path)) == faults


@pytest.mark.parametrize(
    "line, rule",
    [
        ("x = 1; y = 2", "E702"),
        ("if x: y = 2", "E701"),
        ("f = lambda a: a", "E731"),
        ("x = '" + "y" * 100 + "'", "E501"),
        ("x = not_there", "F821"),
    ],
)
def test_bad_style_is_found(root, tmp_path, line, rule):
    write(tmp_path / "ruff.toml", (root / "ruff.toml").read_text(encoding="utf-8"))
    write(tmp_path / "a.py", "x = 1\n")
    assert not badly_written(tmp_path)
    write(tmp_path / "a.py", "x = 1\n" + line + "\n")
    assert any(rule in found for found in badly_written(tmp_path))
    write(tmp_path / "a.py", "x = { 1 }\n")
    assert any("a.py" in found for found in badly_written(tmp_path))


def test_a_room_that_looks_up_is_found(tmp_path):
    write(tmp_path / "gpub/low/a.py", "from gpub.core import x")
    write(tmp_path / "gpub/high/b.py", "from ..low.a import y\nfrom gpub import core")
    rows = [["core"], ["low", "beside"], ["high"]]
    assert not off_the_rows(tmp_path, rows)
    write(tmp_path / "gpub/low/a.py", "def f():\n    from ..high.b import y")
    assert "above its own" in off_the_rows(tmp_path, rows)[0]
    write(tmp_path / "gpub/low/a.py", "from gpub.beside.c import y")
    assert "of its own row" in off_the_rows(tmp_path, rows)[0]
    write(tmp_path / "gpub/low/a.py", "from ..core import _x")
    assert "private" in off_the_rows(tmp_path, rows)[0]
    write(tmp_path / "gpub/attic/a.py", "from ..core import x")
    assert any("no row" in found for found in off_the_rows(tmp_path, rows))


def test_click_outside_is_found(tmp_path):
    write(tmp_path / "gpub/cli/a.py", "import click")
    assert not click_outside(tmp_path)
    write(tmp_path / "gpub/low/a.py", "def f():\n    from click import echo")
    assert click_outside(tmp_path) == ["low.a imports click"]


def test_two_meanings_are_found(tmp_path):
    write(tmp_path / "gpub/low/a.py", "__all__ = ['f', 'g']")
    write(tmp_path / "gpub/high/b.py", "__all__ = ['h']")
    assert not two_meanings(tmp_path)
    write(tmp_path / "gpub/high/b.py", "__all__ = ['f']")
    assert two_meanings(tmp_path) == ["f is defined by high.b, low.a"]


def test_what_nothing_uses_is_found(tmp_path):
    write(tmp_path / "gpub/__init__.py", "from .low.a import f as f")
    write(
        tmp_path / "gpub/low/a.py",
        "__all__ = ['f', 'g', 'C', 'm', 'up', 'left']\n"
        "def f(): return C.x\ndef g(n): return g(n - 1)\nclass C: pass\n"
        "@cli.command()\ndef m(): pass\ndef up(): pass\nleft: int = 1\n",
    )
    write(tmp_path / "gpub/high/b.py", "def f():\n    from ..low import a\n    a.up()")
    missing = ["nothing in the package uses low.a." + name for name in ("g", "left")]
    assert unused(tmp_path, {}) == missing
    assert unused(tmp_path, {"low.a": "g left"}) == []
    assert len(unused(tmp_path, {"low.a": "g left up", "gone": "x"})) == 2


def test_machine_path_is_found(tmp_path):
    write(tmp_path / "a.md", "runs in /workspace and ./work/x, https://x.org/work/")
    assert not machine_paths(tmp_path)
    write(tmp_path / "a.md", "see /wo" + "rk/notes")
    assert len(machine_paths(tmp_path)) == 1


def test_eager_import_is_found(tmp_path):
    write(tmp_path / "gpub/__init__.py", "")
    write(tmp_path / "gpub/a.py", "def f(): import fastcore")
    assert without(tmp_path, block=True) == [] == without(tmp_path, block=False)
    write(tmp_path / "gpub/a.py", "import fastcore")
    assert without(tmp_path, block=False) == ["imported: ['fastcore']"]
    assert "blocked" in without(tmp_path, block=True)[0]


def test_hand_edited_module_is_found(copy):
    for p in notebooks(copy):
        p.unlink() if p.stem != "00_core" else None
    for p in (copy / "gpub").iterdir():
        if p.is_dir():
            shutil.rmtree(p)
        elif p.stem not in ("__init__", "core"):
            p.unlink()
    assert out_of_step(copy) == ["gpub/_modidx.py"]
    with open(copy / "gpub/core.py", "a") as f:
        f.write("\nEDITED = 1\n")
    assert out_of_step(copy) == ["gpub/core.py"]
