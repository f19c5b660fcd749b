#!/usr/bin/env bash
# Trains the 1B on a rented GPU, and survives a closed laptop and a machine that is taken away: the steps of nbs/train_1b.ipynb, in the same folders.
#
# 1. account and volume: `gpub run burn-1b --show --steps --gpu A100-80 --until push` says how large, and what each step costs
# 2. data, on a machine without a GPU that has the volume:   DATA_ONLY=1 bash scripts/runpod.sh
# 3. GPU with the same volume, then preflight, smoke, walk:
#   git clone https://github.com/gpuburnout/gpub /workspace/gpub && cd /workspace/gpub
#   USD_PER_HOUR=1.49 MAX_USD=285 bash scripts/runpod.sh          on the pod: starts everything inside tmux; attach with: tmux attach -t gpub
#   TOY=1 USD_PER_HOUR=1.49 bash scripts/runpod.sh                the same on any CPU, in a minute
#
# HOME_DIR  where everything lives, as on the page Train the 1B: HOME_DIR/train_1b/shards and /run  [/workspace when it is there, else runs]
#           what is printed goes to gpub.log in the run's folder too, as on the page, and how it stands in one line to STATUS beside it
# MIRROR    a second place for the run: a network volume or a mounted Drive; finished shards go to MIRROR-shards beside it
# SHARDS    a folder made by `gpub prep`, or by `gpub prep --compress`, to use instead of preparing the corpus
# UNTIL     the last phase to do now: smoke, proof, grind, push, longer, chinchilla; the learning rate falls to its end there  [push]
# MAX_USD   training stops before the run has cost so many dollars (the pod itself stays on: WHEN_DONE); less than its forecast is refused before anything is prepared  [the budgets of its phases]
# BALANCE   dollars in the account: no ceiling may be above them
# MORE      dollars over the budget of a phase: grind=10    ACCEPT  a gate to ignore for good: smoke:usd_per_billion
# TOKENS    to prepare  [as many as the phases up to UNTIL read]
# NOTIFY    a URL that gets a line at the end of every phase and when the run stops: a topic of ntfy, a webhook of Slack
# WHEN_DONE a command for the very end, however it came unless by Ctrl-C, so that nobody pays for a sleeping GPU: 'runpodctl stop pod $RUNPOD_POD_ID'
# NO_TMUX=1 stay in this terminal
# 4. evaluate, export, take home, talk: gpub bill, gpub export, gpub push on HOME_DIR/train_1b/run; nbs/train_chat.ipynb finds it there. 5. delete the volume
set -euo pipefail
cd "$(dirname "$0")/.."
[ -z "${DATA_ONLY:-}" ] || USD_PER_HOUR=${USD_PER_HOUR:-0} # nothing is trained, so nothing is billed
: "${USD_PER_HOUR:?what does this machine cost an hour? USD_PER_HOUR=1.49 bash scripts/runpod.sh}"
HOME_DIR=${HOME_DIR:-$([ -d /workspace ] && echo /workspace || echo runs)}
PY=${PYTHON:-python}

if [ -z "${NO_TMUX:-}" ] && [ -z "${TMUX:-}" ]; then
    command -v tmux >/dev/null || { echo 'tmux is missing (apt-get install -y tmux), or set NO_TMUX=1' >&2; exit 1; }
    if tmux has-session -t =gpub 2>/dev/null; then
        echo 'tmux has a session gpub already: look with tmux attach -t gpub, and leave it with exit to begin anew' >&2; exit 1
    fi
    asked=(NO_TMUX=1) # a tmux that is already running has its own environment
    for v in USD_PER_HOUR DATA_ONLY MAX_USD BALANCE MORE ACCEPT HOME_DIR MIRROR SHARDS UNTIL TOKENS TOY PYTHON NOTIFY WHEN_DONE PATH RUNPOD_POD_ID; do
        [ -z "${!v:-}" ] || asked+=("$v=${!v}")
    done
    tmux new-session -d -s gpub "$(printf '%q ' env "${asked[@]}" "$(command -v bash)" "$PWD/scripts/runpod.sh"); exec bash"
    echo 'started; look with: tmux attach -t gpub'; exit 0
fi

# What is printed outlives a machine that is switched off at the end: it lies on the volume before WHEN_DONE is run. Errors and the rest go through one
# pipe, so the log has them in the order in which they were printed, and is whole when the pipe has ended.
home=$HOME_DIR/train_$([ -n "${TOY:-}" ] && echo toy || echo 1b); run=$home/run; mkdir -p "$run"
log=$run/gpub.log; began=$(mktemp)
export PYTHONUNBUFFERED=1 GPUB_LOG=$log # gpub run itself keeps no second one
[ -z "${NOTIFY:-}" ] || export GPUB_NOTIFY=$NOTIFY
# shellcheck disable=SC2329 # the function below calls it
still_on() {
    line="WHEN_DONE failed (code $1): this machine is still on and you are still charged for it. Stop it now in your provider's console."
    echo "$line" | tee -ai "$log"
    echo "$(date -u '+%Y-%m-%d %H:%M:%S UTC:') $line How the run ended: $(cat "$run/STATUS")" > "$run/STATUS.new"
    mv "$run/STATUS.new" "$run/STATUS"
    if [ -n "${NOTIFY:-}" ]; then curl -fsS -m 10 -d "$line" "$NOTIFY" >/dev/null || true; fi
}
# shellcheck disable=SC2329 # the trap calls it
say_how_it_ended() {
    code=$?
    # a verdict has said in STATUS what to do; a refusal or an accident has not
    if ! { [ "$code" -le 1 ] && [ "$run/STATUS" -nt "$began" ]; }; then
        line="ended with code $code: $(tail -n 1 "$log"); to go on, start the same line again"
        echo "$(date -u '+%Y-%m-%d %H:%M:%S UTC:') $line" > "$run/STATUS"
        if [ -n "${NOTIFY:-}" ]; then curl -fsS -m 10 -d "$line" "$NOTIFY" >/dev/null || echo "the message was not delivered (curl failed); STATUS has the line"; fi
    fi
    sync "$run" 2>/dev/null || sync
    if [ -n "${WHEN_DONE:-}" ] && [ "$code" -ne 130 ]; then
        bash -c "$WHEN_DONE" || still_on $?
    fi
}
trap say_how_it_ended EXIT

# After a verdict or a refusal gpub says one line and exits with 1; so does Python after an exception that nobody expected, and that becomes 70 here.
gpub() { "$PY" -c 'import sys, traceback; from gpub.cli.main import main
try: main()
except Exception: traceback.print_exc(); sys.exit(70)' "$@"; }
reached() { cat "$run/LATEST" 2>/dev/null || echo nothing; }

walk() {
    set -e
    # gpub, with the torch that this machine already has; in a clone `import gpub` alone always works
    if ! "$PY" -c 'import gpub.cli.plans, gpub.train.trainer' 2>/dev/null; then
        keep=$(mktemp); "$PY" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > "$keep"
        "$PY" -m pip install -q -c "$keep" -e '.[data,hub]'
    fi

    if [ -n "${TOY:-}" ]; then
        plan=burn-toy; data=$home/toy.txt
        [ -s "$data" ] || "$PY" -c 'import sys; from gpub.data.plays import plays; open(sys.argv[1], "w").write(plays(60_000, seed=0))' "$data"
    else
        plan=burn-1b; data=${SHARDS:-$home/shards}
        UNTIL=${UNTIL:-push}
        if [ -z "${DATA_ONLY:-}" ] && [ ! -f "$run/LATEST" ]; then # no checkpoint yet
            card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
            gpub run "$plan" --show --steps --gpu "$card" --usd-per-hour "$USD_PER_HOUR" --until "$UNTIL" \
                ${MAX_USD:+--max-usd "$MAX_USD"} ${BALANCE:+--balance "$BALANCE"} ${MORE:+--more "$MORE"} ${ACCEPT:+--accept "$ACCEPT"}
        fi
        if compgen -G "$data/*.zst" >/dev/null; then gpub prep --unpack "$data"
        elif [ ! -f "$data/manifest.json" ]; then
            enough=$("$PY" -c 'import sys; from gpub.plans.paid_steps import tokens_read; from gpub.plans.phases import read_plan; print(tokens_read(read_plan(sys.argv[1]), sys.argv[2]))' "$plan" "$UNTIL")
            gpub prep --recipe data/recipes/burn1b.json --out "$data" --tokens "${TOKENS:-$enough}" ${MIRROR:+--mirror "${MIRROR%/}-shards"}
        fi
        if [ -n "${DATA_ONLY:-}" ]; then echo "the data lie in $data: stop this machine, and start the same line without DATA_ONLY where the GPU is"; exit 0; fi
        if [ ! -f "$run/LATEST" ]; then # priced for the steps up to UNTIL
            last=$("$PY" -c 'import sys; from gpub.plans.phases import read_plan; print(read_plan(sys.argv[1]).phase(sys.argv[2]).until)' "$plan" "$UNTIL")
            gpub preflight "$plan" --data "$data" --out "$run" --usd-per-hour "$USD_PER_HOUR" --set "steps=$last"
        fi
    fi

    # What gpub says itself ends the loop: 0 done or ceiling, 1 a gate or a budget said stop, or the command was refused, 130 somebody pressed Ctrl-C.
    # Anything else was an accident, and the run goes on from its last checkpoint; two accidents without a step between them are a lasting fault.
    idle=0
    for attempt in 1 2 3 4 5; do
        before=$(reached)
        code=0
        gpub run "$plan" --data "$data" --out "$run" --usd-per-hour "$USD_PER_HOUR" --paid-gaps \
            ${MAX_USD:+--max-usd "$MAX_USD"} ${BALANCE:+--balance "$BALANCE"} ${MORE:+--more "$MORE"} ${ACCEPT:+--accept "$ACCEPT"} ${UNTIL:+--until "$UNTIL"} ${MIRROR:+--mirror "$MIRROR"} || code=$?
        case $code in 0|1|130) break;; esac
        if [ "$(reached)" = "$before" ]; then idle=$((idle + 1)); else idle=0; fi
        if [ "$idle" -ge 2 ]; then
            echo "gpub run ended with code $code twice without a new checkpoint: it would fail again; the reason is above, in $log too"; break
        fi
        echo "gpub run ended with code $code (attempt $attempt of 5); going on from the last checkpoint"
        sleep "${RETRY_SECONDS:-20}"
    done
    if [ "$code" -eq 0 ]; then gpub bill "$run"; fi
    exit "$code"
}

set +e # inside `||` nothing in walk would end it
walk 2>&1 | tee -ai "$log" # Ctrl-C is for walk: tee has its last words to write
exit
