"Write every drawing to its place"

from . import ROOT, drawings

for path, drawing in drawings().items():
    (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
    (ROOT / path).write_text(drawing.svg(), encoding="utf-8")
    print(path)
