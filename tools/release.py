"""What a release must pass: sdist and wheel are built, hold what they should and nothing else, and
the wheel works in a new environment far from the clone.

make release (what it builds is in dist/; uploading is left to you: twine upload dist/*).
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv as setup  # tools/venv.py
import zipfile
from pathlib import Path

root, dist = setup.root, setup.root / "dist"


def run(*args, cwd, **kw):
    "What a command printed; its failure ends this one"
    done = subprocess.run(
        [str(a) for a in args],
        cwd=cwd,
        env=setup.environment() | kw,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, args))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def unwanted(names):
    "Files that have no business in the package"
    return [
        n
        for n in names
        if not (
            n.startswith("gpub/")
            and n.endswith((".py", ".json", ".jinja", ".css", ".js"))
            or n.split("/")[0].endswith(".dist-info")
        )
    ]


def package_files():
    "What a wheel must hold: modules, templates, styles, scripts"
    return {
        p.relative_to(root).as_posix()
        for p in (root / "gpub").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }


def build():
    "(wheel, sdist); the wheel is made from the sdist, so that one is known to be complete"
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "build", "-o", dist, root, cwd=root)
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
    if bad := unwanted(names):
        sys.exit(f"{wheel.name} holds {bad[:5]}")
    if lost := package_files() - set(names):
        sys.exit(f"{wheel.name} lacks {sorted(lost)}")
    with tarfile.open(sdist) as t:
        bad = [
            n
            for n in t.getnames()
            if n.endswith((".ipynb", ".png", ".html", ".bin", ".safetensors"))
        ]
    if bad:
        sys.exit(f"{sdist.name} holds {bad[:5]}")
    print(
        f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e3:,.0f} KB; {sdist.name}: "
        f"{sdist.stat().st_size / 1e3:,.0f} KB"
    )
    return wheel, sdist


def try_out(wheel, folder):
    "Install the wheel alone, and use it"
    setup.home = folder / "env"
    setup.python = setup.home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    setup.mark = setup.home / "made-by-gpub"
    setup.make_venv()
    setup.install_torch()
    if not setup.pip(wheel, "-c", root / "constraints.txt"):
        sys.exit(f"{wheel.name} could not be installed")
    gpub = setup.python.with_name("gpub" + setup.python.suffix)
    where = run(setup.python, "-c", "import gpub; print(gpub.__file__)", cwd=folder).strip()
    if not Path(where).is_relative_to(setup.home):
        sys.exit(f"imported {where}, which is not the wheel")
    if "train" not in run(gpub, "--help", cwd=folder):
        sys.exit("gpub --help does not know train")
    last = (
        run(gpub, "train", "shakespeare", "--steps", "5", "--out", "run", cwd=folder)
        .strip()
        .splitlines()[-1]
    )
    if not (folder / "run" / "report.html").is_file():
        sys.exit("gpub train wrote no report.html")
    print(f"in a new environment: gpub --help and gpub train shakespeare --steps 5 work ({last})")


if __name__ == "__main__":
    wheel, _ = build()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as d:
        try_out(wheel, Path(d))
