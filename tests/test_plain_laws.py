"""How the library reads: what a reader stumbles over is a law, and each is shown a violation.

Most hold without exception. Where a room still has some, `LEFT` says how many: a number that may
only fall."""

import ast
import io
import re
import tokenize
from functools import cache

import pytest
from test_laws import module_files, parsed, write

# words that say nothing about what a variable holds
EMPTY_NAMES = set("found asked how said told mine look what place most".split())
# what a docstring may begin with; whoever needs another verb adds it
VERBS = set(
    """
    Accept Add Adjust Answer Append Apply Arrange Ask Attend Average Begin Book Bring Build Call
    Change Check Choose Clean Close Collect Colour Compare Compile Complain Compute Continue
    Convert Copy Count Cut Deal Decide Decode Deduplicate Delete Describe Divide Do Download
    Draw Drop Encode End Enter Escape Estimate Evaluate Examine Explain Export Fetch Fill Filter
    Find Finish Fit Follow Force Forecast Forget Freeze Gather Generate Give Go Grade Group Grow
    Guess Hand Hash Hide Hold Identify Import Insert Interpolate Join Judge Keep Label Lay Learn
    Leave Let Link List Listen Load Lock Log Look Lower Make Mark Measure Merge Mix Model Move
    Multiply Name Note Open Pack Pair Parse Plan Predict Prepare Price Print Propose Put Quote
    Race Raise Rank Read Rebuild Record Reduce Refuse Register Rehearse Remember Remove Rename
    Render Repair Replace Report Reset Restore Resume Retry Return Rewrite Round Run Sample Save
    Say Scale Scan Score Seal Seed Select Send Serve Set Shade Share Show Shuffle Silence
    Simulate Skip Slice Sort Spell Split Spread Stack Start Step Stop Store Stream Strip Submit
    Sum Summarize Switch Sync Take Talk Teach Tell Throw Time Tokenize Train Translate Trim Try
    Tune Turn Undo Upload Validate Verify Wait Walk Warn Weigh Wipe Work Wrap Write Yield
""".split()
)


@cache
def nodes(text):
    "Every node of a module's syntax tree"
    return list(ast.walk(parsed(text)))


@cache
def tokens(text):
    "Every token of a module"
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def syntax(root):
    "(module, node) of every node of every module"
    for name, path in module_files(root).items():
        for node in nodes(path.read_text(encoding="utf-8")):
            yield name, node


def packed(root):
    "Several assignments on one line, but for a swap: `a, b = b, a`"
    for name, node in syntax(root):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        given = sorted(map(ast.unparse, node.value.elts))
        for target in node.targets:
            if isinstance(target, ast.Tuple) and sorted(map(ast.unparse, target.elts)) != given:
                yield name, node, "several assignments in one"


def decisions_as_expressions(root):
    "`and` or `or` instead of `if`"
    for name, node in syntax(root):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.BoolOp):
            yield name, node, "`if` says that something is done or not"


def is_truth(node):
    "Whether an expression is a comparison or a negation"
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    named = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "bool"
    return negated or named or isinstance(node, ast.Compare)


def truths_as_factors(root):
    "A comparison that is multiplied"
    for name, node in syntax(root):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            if is_truth(node.left) or is_truth(node.right):
                yield name, node, "`a if b else c` says what a factor of True means"


def nested_choices(root):
    "A choice in one line within another"
    for name, node in syntax(root):
        if isinstance(node, ast.IfExp):
            inside = (n for child in ast.iter_child_nodes(node) for n in ast.walk(child))
            if any(isinstance(n, ast.IfExp) for n in inside):
                yield name, node, "a choice within a choice: write `if`"


def long_choices(root):
    "A choice that is an expression and takes several lines"
    for name, node in syntax(root):
        if isinstance(node, ast.IfExp) and node.lineno != node.end_lineno:
            yield name, node, "a choice over several lines: write `if`"


def thunks(root):
    "A lambda without arguments, to run something on the main process"
    for name, node in syntax(root):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("on_main"):
            if any(isinstance(given, ast.Lambda) for given in node.args):
                yield name, node, "`if world.main:` reads in one pass"


def empty_names(root):
    "Variables, arguments and attributes whose name says nothing"
    for name, node in syntax(root):
        bound = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            bound = node.attr
        elif isinstance(node, ast.arg):
            bound = node.arg
        if bound in EMPTY_NAMES:
            yield name, node, f"`{bound}` says nothing about what it holds"


def own_nodes(function):
    "The nodes of a function without those of functions inside"
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from own_nodes(child)


def unannotated_results(root):
    "Functions that return or yield something and do not say what"
    for name, node in syntax(root):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is None:
            gives = [n for n in own_nodes(node) if isinstance(n, (ast.Return, ast.Yield))]
            if any(n.value is not None for n in gives):
                yield name, node, f"{node.name} does not say what it returns"


def public_functions(body):
    "Functions and methods whose names have no underscore in front, of a module or a class"
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from public_functions(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name[0] != "_":
            yield node


def is_property(node):
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    return bool(decorators & {"property", "cached_property", "functools.cached_property"})


def docstrings_without_a_verb(root):
    """Docstrings that do not begin with what the function does: they say what is returned, or how.
    A property is read like an attribute, and its docstring says what it holds"""
    for name, path in module_files(root).items():
        for node in public_functions(parsed(path.read_text(encoding="utf-8")).body):
            if is_property(node):
                continue
            words = (ast.get_docstring(node) or "").split()
            if words and words[0].rstrip(",:;.") not in VERBS:
                yield name, node, f"{node.name} begins with {words[0]!r}"


def comments(path):
    "(line, text) of the comments of a file"
    for token in tokens(path.read_text(encoding="utf-8")):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


POINTS = re.compile(r"#.*\b(as for `|as above|likewise|the same (with|as an?|of an?other)\b)")


def comments_that_point(root):
    "Comments that send the reader to another place"
    for name, path in module_files(root).items():
        for line, text in comments(path):
            if POINTS.search(text):
                yield name, line, f"say it, or leave it out: {text}"


def words_of_code(root):
    "Every name and every word of a string in the package and its data"
    words = set()
    for path in module_files(root).values():
        for token in tokens(path.read_text(encoding="utf-8")):
            if token.type in (tokenize.NAME, tokenize.STRING):
                words |= set(re.findall(r"\w+", token.string))
    return words


def stale_names(root):
    "Names in backquotes, in a comment, that nothing in the package has"
    known = words_of_code(root)
    for name, path in module_files(root).items():
        for line, text in comments(path):
            for quoted in re.findall(r"`([A-Za-z_][\w.]*)`", text):
                missing = set(quoted.split(".")) - known
                if missing:
                    yield name, line, f"`{quoted}` is nowhere: {text}"


LAWS = [
    packed,
    decisions_as_expressions,
    truths_as_factors,
    nested_choices,
    long_choices,
    thunks,
    empty_names,
    unannotated_results,
    comments_that_point,
    stale_names,
]
# How many places break a law and are known to: these numbers may only fall
LEFT = dict(
    truths_as_factors=6,
    nested_choices=14,
    long_choices=31,
    thunks=1,
    empty_names=183,
    unannotated_results=53,
    comments_that_point=16,
)


def places(law, root):
    "What breaks a law, a line each"
    for name, node, why in law(root):
        yield f"{name}, line {getattr(node, 'lineno', node)}: {why}"


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(root, law):
    found = list(places(law, root))
    assert len(found) <= LEFT.get(law.__name__, 0), "\n" + "\n".join(found)


def test_docstrings_begin_with_a_verb(root):
    found = list(places(docstrings_without_a_verb, root))
    assert not found, "\n" + "\n".join(found)


VIOLATIONS = [
    (
        docstrings_without_a_verb,
        'def f():\n    "Count rows"\ndef _g():\n    "The rows"\ndef h(): pass',
        'class A:\n    def f(self):\n        "The rows of a table"',
    ),
    (packed, "a, b = b, a\nc, d = f()\n(e, g), h = x", "a, b = 1, 2"),
    (packed, "self.a, self.b = self.b, self.a", "self.a, self.b = a, b"),
    (decisions_as_expressions, "x = a and f()", "a and f()"),
    (truths_as_factors, "x = 2 * n\ny = 2 if n > 1 else 0", "x = 's' * (n > 1)"),
    (truths_as_factors, "x = not n", "x = 2 * (not n)"),
    (nested_choices, "x = a if b else c", "x = a if b else c if d else e"),
    (long_choices, "x = a if b else c", "x = (\n    a\n    if b\n    else c\n)"),
    (thunks, "on_main(f)\nsorted(x, key=lambda y: 1)", "world.on_main(lambda: f(1))"),
    (empty_names, "rows = found.look", "for found in x: pass"),
    (empty_names, "class A:\n    step: int", "class A:\n    place: int"),
    (empty_names, "def f(step): pass", "def f(how): pass"),
    (empty_names, "f(what=1)", "self.said = 1"),
    (
        unannotated_results,
        "def f() -> int:\n    return 1\ndef g():\n    return",
        "def f(): return 1",
    ),
    (unannotated_results, "def f():\n    def g() -> int:\n        return 1", "def f(): yield 1"),
    (comments_that_point, "x = 1  # bytes", "x = 1  # as for `y`"),
    (comments_that_point, "x = '# likewise'", "x = 1  # likewise"),
    (stale_names, "x = 1  # see `x`, `a.x` and `x()`\na = 1", "x = 1  # see `y.x`"),
]


@pytest.mark.parametrize("law, kept, broken", VIOLATIONS)
def test_a_violation_is_found(tmp_path, law, kept, broken):
    write(tmp_path / "gpub/low/a.py", kept + "\n")
    assert list(places(law, tmp_path)) == []
    write(tmp_path / "gpub/low/a.py", broken + "\n")
    assert len(list(places(law, tmp_path))) == 1
