"""The process that `gpub.lab.museum.blog.held_memory` leaves behind.

It locks the run folder in its first argument, takes some memory, prints `held`, and keeps both
until its input is closed.
"""

import sys
from gpub.record.folder import lock_folder

BALLAST = 50_000_000  # bytes


def main():
    with lock_folder(sys.argv[1]):
        ballast = bytearray(BALLAST)
        print("held", flush=True)
        sys.stdin.read()
        del ballast


if __name__ == "__main__":
    main()
