#!/bin/sh
# Every test, in a few runs side by side, since most of each is waiting: a run takes the first part
# that none has taken, so the long parts stand first.
# Usage: run-all.sh PYTHON. LANES is how many runs there are at once. With POSTROAD_TEST_AGAIN set,
# what failed in a part is run once more.
set -u
python=$1
with_cluster=tests/integration/test_killed_operator.py # it applies the CRDs, as e2e tests do
parts='pipeline pods integration unit commands controller crash faults contract kills'

# tests/stack is a tool: its servers are started and killed again only after a change of it.
version=$(find tests/stack tests/integration/stack -name '*.pyc' -prune -o -type f -print |
    LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-16)
stack_passed=${XDG_CACHE_HOME:-$HOME/.cache}/postroad/passed/stack-$version
test -e "$stack_passed" || parts="$parts stack"

run() { # NAME ARGUMENT...
    name=$1
    shift
    case $name in
    unit | crash) polite="nice -n 5" ;; # the others are watched by the clock
    *) polite= ;;
    esac
    $polite "$python" -m pytest --durations=15 --durations-min=5 \
        -o cache_dir=".pytest_cache/$name" $again "$@" >>"build/tests/$name.log" 2>&1 &
    running=$!
    wait $running
}

run_part() {
    case $1 in
    integration)
        run integration tests/integration --ignore=tests/integration/stack \
            --ignore=tests/integration/faults --ignore=$with_cluster
        ;;
    pipeline) run pipeline tests/pipeline -k 'not command' ;;
    commands) run commands tests/pipeline -k command ;; # Spark anew for half of them
    pods) run pods tests/e2e $with_cluster -m 'not kills_servers' ;;
    kills) run kills tests/e2e -m kills_servers ;; # late: they wait until no test uses the servers
    faults) run faults tests/integration/faults ;;
    stack) run stack tests/integration/stack && mkdir -p "${stack_passed%/*}" && : >"$stack_passed" ;;
    unit) run unit tests/unit operator ;;
    *) run "$1" "tests/$1" ;;
    esac
}

run_lane() { # until no part is left
    running= status=0
    trap 'kill $running 2>/dev/null; exit 143' TERM
    for part in $parts; do
        mkdir "build/tests/$part" 2>/dev/null || continue
        echo "$part: begins"
        began=$(date +%s)
        again=
        if run_part "$part"; then
            end=passed
        elif again=--last-failed && test -n "${POSTROAD_TEST_AGAIN:-}" && run_part "$part"; then
            end='passed the second time'
        else
            end=FAILED status=1
        fi
        echo "$part: $end after $(($(date +%s) - began)) s: $(tail -n 1 "build/tests/$part.log")"
    done
    return $status
}

rm -rf build/tests
mkdir -p build/tests
export POSTROAD_TEST_REPLY_STREAMS=2500 POSTROAD_TEST_CONNECTION_RUNS=1000 # too many for `make unit`
lanes=
for _ in $(seq "${LANES:-3}"); do
    run_lane &
    lanes="$lanes $!"
done
trap 'kill $lanes 2>/dev/null; exit 143' INT TERM
failed=0
for lane in $lanes; do
    wait "$lane" || failed=1
done
for part in $parts; do
    echo "== $part"
    cat "build/tests/$part.log"
done
exit $failed
