#!/usr/bin/env bash
# Trains the 1B on a rented GPU, and survives a closed laptop and a machine that is taken away.
#
#   USD_PER_HOUR=1.49 MAX_USD=225 bash scripts/runpod.sh          on the pod: starts everything inside tmux; attach with: tmux attach -t gpub
#   TOY=1 USD_PER_HOUR=1.49 bash scripts/runpod.sh                the same on any CPU, in a minute
#
# HOME_DIR  where data and run live            [/workspace when it is there, else .]
# MIRROR    a second place for the run: a network volume or a mounted Drive; finished shards go to MIRROR-shards beside it
# SHARDS    a folder made by `gpub prep`, or by `gpub prep --compress`, to use instead of preparing the corpus
# UNTIL     the last phase to do now: smoke, proof, grind, push, longer, chinchilla; the learning rate falls to its end there  [push]
# MAX_USD   a hard stop for the run; less than its forecast is refused before anything is prepared  [the budgets of its phases]
# TOKENS    to prepare  [as many as the phases up to UNTIL read: 12 billion up to push, 21 billion for all]
# WHEN_DONE a command for the very end, however it came unless by Ctrl-C, so that nobody pays for a sleeping GPU: 'runpodctl stop pod $RUNPOD_POD_ID'
# NO_TMUX=1 stay in this terminal
set -euo pipefail
cd "$(dirname "$0")/.."
: "${USD_PER_HOUR:?what does this machine cost an hour? USD_PER_HOUR=1.49 bash scripts/runpod.sh}"
HOME_DIR=${HOME_DIR:-$([ -d /workspace ] && echo /workspace || echo .)}
PY=${PYTHON:-python}

if [ -z "${NO_TMUX:-}" ] && [ -z "${TMUX:-}" ]; then
    command -v tmux >/dev/null || { echo 'tmux is missing (apt-get install -y tmux), or set NO_TMUX=1' >&2; exit 1; }
    if tmux has-session -t =gpub 2>/dev/null; then
        echo 'tmux has a session gpub already: look with tmux attach -t gpub, and leave it with exit to begin anew' >&2; exit 1
    fi
    asked=(NO_TMUX=1) # a tmux that is already running has its own environment
    for v in USD_PER_HOUR MAX_USD HOME_DIR MIRROR SHARDS UNTIL TOKENS TOY PYTHON WHEN_DONE PATH RUNPOD_POD_ID; do
        [ -z "${!v:-}" ] || asked+=("$v=${!v}")
    done
    tmux new-session -d -s gpub "$(printf '%q ' env "${asked[@]}" "$(command -v bash)" "$PWD/scripts/runpod.sh"); exec bash"
    echo 'started; look with: tmux attach -t gpub'; exit 0
fi
trap 'code=$?; if [ -n "${WHEN_DONE:-}" ] && [ "$code" -ne 130 ]; then bash -c "$WHEN_DONE"; fi' EXIT

# gpub, with the torch that this machine already has
if ! "$PY" -c 'import gpub' 2>/dev/null; then
    keep=$(mktemp); "$PY" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > "$keep"
    "$PY" -m pip install -q -c "$keep" -e '.[data,hub]'
fi
# After a verdict or a refusal gpub says one line and exits with 1; so does Python after an exception that nobody expected, and that becomes 70 here.
gpub() { "$PY" -c 'import sys, traceback; from gpub.cli.main import main
try: main()
except Exception: traceback.print_exc(); sys.exit(70)' "$@"; }

if [ -n "${TOY:-}" ]; then
    plan=burn-toy; preset=burn-toy; run=$HOME_DIR/runs/toy; data=$HOME_DIR/data/toy.txt
    mkdir -p "$(dirname "$data")"
    [ -s "$data" ] || "$PY" -c 'import sys; from gpub.data.plays import plays; open(sys.argv[1], "w").write(plays(60_000, seed=0))' "$data"
else
    plan=burn-1b; preset=burn-1b; run=$HOME_DIR/runs/burn-1b; data=${SHARDS:-$HOME_DIR/data/burn1b}
    UNTIL=${UNTIL:-push}
    card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
    if [ ! -d "$run" ]; then
        gpub run "$plan" --show --gpu "$card" --usd-per-hour "$USD_PER_HOUR" --until "$UNTIL" ${MAX_USD:+--max-usd "$MAX_USD"}
    fi
    if compgen -G "$data/*.zst" >/dev/null; then gpub prep --unpack "$data"
    elif [ ! -f "$data/manifest.json" ]; then
        case $UNTIL in smoke|proof|grind|push) enough=12000000000;; *) enough=21000000000;; esac
        gpub prep --recipe data/recipes/burn1b.json --out "$data" --tokens "${TOKENS:-$enough}" ${MIRROR:+--mirror "${MIRROR%/}-shards"}
    fi
    [ -d "$run" ] || gpub preflight "$preset" --data "$data" --out "$run" --usd-per-hour "$USD_PER_HOUR"
fi

# What gpub says itself ends the loop: 0 done or ceiling, 1 a gate or a budget said stop, or the command was refused, 130 somebody pressed Ctrl-C.
# Anything else was an accident, and the run goes on from its last checkpoint.
for attempt in 1 2 3 4 5; do
    code=0
    gpub run "$plan" --data "$data" --out "$run" --usd-per-hour "$USD_PER_HOUR" --paid-gaps \
        ${MAX_USD:+--max-usd "$MAX_USD"} ${UNTIL:+--until "$UNTIL"} ${MIRROR:+--mirror "$MIRROR"} || code=$?
    case $code in 0|1|130) break;; esac
    echo "gpub run ended with code $code (attempt $attempt of 5); going on from the last checkpoint"
done
if [ -f "$run/log.jsonl" ]; then gpub bill "$run"; fi
exit "$code"
