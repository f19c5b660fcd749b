"""What is left of a folder when the power goes: only what was forced to the disk.

A shim in Python suffices here, as every fsync of gpub is Python's own. It notes what each fsync of
a file and of a folder made safe; `left` is the folder as a disk may show it afterwards. Forks of
the process have the shim too: what they force to the disk is noted in a folder that all see.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path


def identity(path: Path | str) -> tuple[int, int]:
    "What tells a file from all others, whatever its name"
    info = os.stat(path, follow_symlinks=False)
    return info.st_dev, info.st_ino


def entries(folder: Path | int) -> dict[str, tuple[int, int]]:
    "Name and identity of all that lies in a folder, by its path or its descriptor"
    device = os.stat(folder).st_dev
    return {entry.name: (device, entry.inode()) for entry in os.scandir(folder)}


class Disk:
    "Remembers what was forced to it"

    def __init__(self, root: Path, noted: Path):
        self.root = root
        self.noted = noted  # a folder: files that were synced by this process or by another one
        self.folders: dict[tuple, dict[str, tuple]] = {}
        for place in (root, *root.rglob("*")):  # what lies there is safe
            if place.is_dir():
                self.folders[identity(place)] = {p.name: identity(p) for p in place.iterdir()}
            else:
                self._noted(identity(place)).write_bytes(place.read_bytes())
        self.states: dict[str, dict[str, bytes]] = {}  # what was left at some moment, by digest

    def sync(self, descriptor: int):
        "An fsync took place"
        info = os.fstat(descriptor)
        key = info.st_dev, info.st_ino
        if stat.S_ISDIR(info.st_mode):
            self.folders[key] = entries(descriptor)
        else:
            content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            self._noted(key).write_bytes(content)

    def _noted(self, key: tuple[int, int]) -> Path:
        return self.noted / "-".join(map(str, key))

    def _synced(self, key: tuple[int, int]) -> bytes:
        "What is safe of a file"
        noted = self._noted(key)
        return noted.read_bytes() if noted.exists() else b""

    def left(self, names_too: bool) -> dict[str, bytes]:
        """The files below the root: names as they were synced, or, as a journal of names alone
        leaves them, as they are now"""
        found: dict[str, bytes] = {}
        places = [(self.root, "")]
        while places:
            place, prefix = places.pop()
            for name, key in self._names(place, names_too).items():
                path = place / name
                if key in self.folders or path.is_dir():
                    places.append((path, f"{prefix}{name}/"))
                else:
                    found[prefix + name] = self._synced(key)
        return found

    def _names(self, place: Path, names_too: bool) -> dict[str, tuple]:
        try:
            return self.folders.get(identity(place), {}) if names_too else entries(place)
        except (FileNotFoundError, NotADirectoryError):
            return {}  # no folder, or another thread took it away meanwhile

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other thread and no fork changes the disk: a state that is noted while a file
        is being forced to it would be one that no disk ever had"""
        with open(self.noted / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def note(self):
        "The power could go now"
        for names_too in (False, True):
            state = self.left(names_too)
            parts = [name.encode() + b"\0" + data + b"\0" for name, data in sorted(state.items())]
            self.states[sha256(b"".join(parts)).hexdigest()] = state


@contextmanager
def watched(root: Path) -> Iterator[Disk]:
    "Every fsync, rename and replacement is a moment at which the power could go"
    safe = Path(tempfile.mkdtemp(prefix="synced-", dir=root.parent.parent))
    disk = Disk(root, safe)
    names = ("fsync", "rename", "replace")
    real = {name: getattr(os, name) for name in names}

    def noted(name: str) -> Callable:
        def call(*given, **how):
            with disk.alone():
                disk.note()
                done = real[name](*given, **how)
                if name == "fsync":
                    disk.sync(given[0])
                disk.note()
            return done

        return call

    for name in names:
        setattr(os, name, noted(name))
    try:
        yield disk
    finally:
        shutil.rmtree(safe)
        for name in names:
            setattr(os, name, real[name])


def put_back(state: dict[str, bytes], folder: Path):
    "Make a folder of what was left"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in state.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
