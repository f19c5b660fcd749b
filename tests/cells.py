"""The pages of the course, and the code of their cells: as syntax trees, and names that a notebook
defines for itself."""

import ast
import importlib
import json
import re


def chapters(root):
    "The numbered pages of the seasons, the path a reader follows"
    return sorted((root / "nbs").glob("season*/[0-9]*.ipynb"))


def deeper_pages(root, season="season*"):
    "The pages beside the path: what a first reader of a chapter does not need"
    return sorted((root / "nbs").glob(f"{season}/deeper/*.ipynb"))


def course_pages(root):
    "Chapters and deeper pages: what all of them promise is asked of every one"
    return chapters(root) + deeper_pages(root)


def python(text):
    "The syntax tree of a cell; a line of IPython's own, with % or !, counts as nothing"
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", text, flags=re.M))


def made_in(tree):
    "Names that a cell defines or assigns"
    made = {getattr(node, "name", None) for node in tree.body}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            made |= {getattr(target, "id", None) for target in node.targets}
    return made - {None}


def only_defines(tree):
    "Whether a cell computes nothing: functions, classes, and constants (`dict` may be called)"
    return all(
        isinstance(node, (ast.FunctionDef, ast.ClassDef))
        or isinstance(node, ast.Assign)
        and not any(
            isinstance(part, ast.Call) and getattr(part.func, "id", None) != "dict"
            for part in ast.walk(node)
        )
        for node in tree.body
    )


def defined_here(notebook, *names):
    """Functions and constants that a notebook keeps to itself: over the module it writes, its cells
    of imports are run, those that define the names, and those of definitions that these read"""
    space, trees = {}, []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or re.search(r"^#\|\s*eval: false", source, re.M):
            continue
        if module := re.match(r"#\|\s*default_exp\s+(\S+)", source):
            space |= vars(importlib.import_module(f"gpub.{module[1]}"))
        trees.append(python(source))
    needed, before = {*names}, None
    while needed != before:
        before = {*needed}
        for tree in trees:
            if made_in(tree) & {*names} or made_in(tree) & needed and only_defines(tree):
                needed |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    for tree in trees:
        imports = all(isinstance(n, (ast.Import, ast.ImportFrom)) for n in tree.body)
        asked = made_in(tree) & {*names}
        if imports or asked or made_in(tree) & needed and only_defines(tree):
            exec(compile(tree, str(notebook), "exec"), space)
    return [space[name] for name in names]
