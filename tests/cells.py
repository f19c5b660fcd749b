"""Code of notebook cells as syntax trees."""

import ast, re


def python(text):
    "The syntax tree of a cell; a line of IPython's own, with % or !, counts as nothing"
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", text, flags=re.M))
