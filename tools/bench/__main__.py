"""Race the library against its peers and file the receipt: python -m tools.bench NAME --json FILE

Each contender takes turns with ours in one run (`gpub.lab.bench.race`). What is measured of this
machine alone is `gpub bench`.
"""

import argparse
import json
from importlib import import_module

from gpub.lab.bench.race import file_receipt

BENCHES = {  # name -> (the bench, its table), functions of the module of that name
    "shakespeare": ("bench_shakespeare", "bench_table"),
    "train": ("bench_train_peers", "bench_train_peers_table"),
    "llama": ("bench_llama", "bench_llama_table"),
    "generate": ("bench_generate", "bench_generate_table"),
    "serve": ("bench_serve", "bench_serve_table"),
    "loader": ("bench_loader", "bench_loader_table"),
    "prep": ("bench_prep", "bench_prep_table"),
    "corpus": ("bench_corpus", "bench_corpus_table"),
    "evals": ("bench_eval", "bench_eval_table"),
}


def read_setting(
    text: str,  # name=value, the value as JSON or else as it stands
) -> tuple[str, object]:
    "Take a setting apart"
    name, mark, value = text.partition("=")
    if not mark:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main():
    parser = argparse.ArgumentParser("python -m tools.bench", description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=BENCHES)
    parser.add_argument("--json", help="where the receipt goes")
    parser.add_argument(
        "--set", type=read_setting, action="append", default=[], metavar="NAME=VALUE"
    )
    options = parser.parse_args()
    module = import_module(f"tools.bench.{options.name}")
    run, table = (getattr(module, function) for function in BENCHES[options.name])
    result = run(**dict(options.set))
    print(table(result))
    file_receipt(result, options.json)


if __name__ == "__main__":
    main()
