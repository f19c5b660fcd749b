"""How the package reads, in figures: `python tools/metrics.py [CHECKOUT ...]` prints one column for
each checkout (default: the one this file lies in), to compare two of them."""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

LONG_LINE = 120  # characters
LONG_FUNCTION = 25  # statements
MANY_ARGUMENTS = 6
GENERATED = ("__init__.py", "_modidx.py")  # fronts of packages and nbdev's index hold no logic
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules(
    checkout: Path,  # a folder with the package in gpub/
) -> dict[str, str]:  # dotted name -> source
    "The modules of the package, without the fronts of its rooms and nbdev's index"
    package = checkout / "gpub"
    if not package.is_dir():
        sys.exit(f"{checkout} has no folder gpub: give the folder of a checkout")
    return {
        ".".join(p.relative_to(package).with_suffix("").parts): p.read_text(encoding="utf-8")
        for p in sorted(package.rglob("*.py"))
        if p.name not in GENERATED
    }


def count_statements(
    node: ast.AST,  # a module, or a function
) -> int:
    "Statements inside a node, docstrings not counted"
    own = 1 if isinstance(node, ast.stmt) else 0
    return sum(isinstance(x, ast.stmt) and not is_docstring(x) for x in ast.walk(node)) - own


def is_docstring(
    node: ast.stmt,  # any statement
) -> bool:
    "Whether a statement is nothing but a string"
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def nodes_per_line(
    tree: ast.Module,  # a module
) -> list[int]:
    "Expression nodes that begin on each line which has any"
    lines = Counter(x.lineno for x in ast.walk(tree) if isinstance(x, ast.expr))
    return list(lines.values())


def count_semicolons(
    source: str,  # of a module
) -> int:
    "Semicolons between statements: those in strings and comments are none"
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(t.type == tokenize.OP and t.string == ";" for t in tokens)


def arguments(
    function: ast.FunctionDef | ast.AsyncFunctionDef,  # any
) -> list[ast.arg]:
    "The arguments of a function, `self` and `cls` left out"
    a = function.args
    named = [*a.posonlyargs, *a.args, *a.kwonlyargs]
    stars = [x for x in (a.vararg, a.kwarg) if x is not None]
    return [x for x in named + stars if x.arg not in ("self", "cls")]


def is_command(
    function: ast.FunctionDef | ast.AsyncFunctionDef,  # any
) -> bool:
    "Whether click calls it: its arguments are its options"
    kinds = (getattr(d, "func", d) for d in function.decorator_list)
    return any(getattr(k, "attr", "") in ("command", "group") for k in kinds)


def public_names(
    tree: ast.Module,  # a module
) -> list[str]:
    "What a module lists in `__all__`"
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def percentile(
    values: list[int],  # any order
    share: float,  # 0.5: the median
) -> int:
    "The value below which a share of the values lies"
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0


def longest_class(
    trees: dict[str, ast.Module],  # of all modules
) -> str:
    "The class of most lines, and how many"
    lengths = [
        (node.end_lineno - node.lineno + 1, f"{name}.{node.name}")
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    lines, name = max(lengths, default=(0, "none"))
    return f"{lines} ({name})"


def share_of(
    part: int,  # of them
    whole: int,  # how many there are
) -> str:
    "A share in percent, and what it is of"
    return f"{100 * part / max(1, whole):.0f}% of {whole:,}"


def measure(
    checkout: Path,  # a folder with the package in gpub/
) -> dict[str, str]:  # what -> figure
    "All figures of one checkout"
    sources = modules(checkout)
    trees = {name: ast.parse(source) for name, source in sources.items()}
    lines = [line for source in sources.values() for line in source.splitlines()]
    walked = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in walked if isinstance(node, FUNCTIONS)]
    own = [f for f in functions if not is_command(f)]
    given = [a for f in own for a in arguments(f)]
    nodes = [n for tree in trees.values() for n in nodes_per_line(tree)]
    names = Counter(n for tree in trees.values() for n in public_names(tree))
    figures = dict(
        modules=len(sources),
        lines=len(lines),
        statements=sum(count_statements(tree) for tree in trees.values()),
        functions=len(functions),
        semicolons=sum(map(count_semicolons, sources.values())),
    )
    figures[f"lines over {LONG_LINE} characters"] = sum(len(line) > LONG_LINE for line in lines)
    figures[f"functions over {LONG_FUNCTION} statements"] = sum(
        count_statements(f) > LONG_FUNCTION for f in functions
    )
    figures[f"functions over {MANY_ARGUMENTS} arguments, commands aside"] = sum(
        len(arguments(f)) > MANY_ARGUMENTS for f in own
    )
    figures["public names of two modules"] = sum(n > 1 for n in names.values())
    shown = {what: f"{n:,}" for what, n in figures.items()}
    shown["expression nodes per line, p50 / p90"] = (
        f"{percentile(nodes, 0.5)} / {percentile(nodes, 0.9)}"
    )
    shown["longest class, lines"] = longest_class(trees)
    shown["arguments with an annotation"] = share_of(
        sum(a.annotation is not None for a in given), len(given)
    )
    return shown


def main(
    folders: list[str],  # of the checkouts
):
    "Print the figures side by side"
    checkouts = [Path(f) for f in folders] or [Path(__file__).resolve().parent.parent]
    columns = [measure(c) for c in checkouts]
    rows = [["", *map(str, folders)]] if folders else []
    rows += [[what, *(c[what] for c in columns)] for what in columns[0]]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
