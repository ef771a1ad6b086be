#!/bin/sh
# Every test, in two runs side by side: those that share the real servers one after the other, and
# meanwhile those that need none, or only an API server of their own. Most of either is waiting.
# Tests that start servers of their own, or Spark, go to the run that is free for them first.
# Usage: run-all.sh PYTHON.
set -u
python=$1
shared=${SHARED_TESTS:-tests/contract tests/integration tests/e2e}
apart=${APART_TESTS:-tests/unit tests/crash tests/controller operator}
own=${OWN_TESTS:-tests/integration/faults tests/pipeline}

# tests/stack is a tool: its servers are started and killed again only after a change of it.
version=$(find tests/stack tests/integration/stack -name '*.pyc' -prune -o -type f -print |
    LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-16)
stack_passed=${XDG_CACHE_HOME:-$HOME/.cache}/postroad/passed/stack-$version
test -e "$stack_passed" || own="$own tests/integration/stack"

run() { # NAME ARGUMENT...
    name=$1
    shift
    ${polite:-} "$python" -m pytest --durations=15 --durations-min=5 -o cache_dir=".pytest_cache/$name" "$@"
}

run_own() { # the folders of `own` that no run has taken yet
    status=0
    for folder in $own; do
        mkdir "build/taken/$(basename "$folder")" 2>/dev/null || continue
        if ! run "$(basename "$folder")" "$folder"; then
            status=1
        elif test "$folder" = tests/integration/stack; then
            mkdir -p "${stack_passed%/*}" && : >"$stack_passed"
        fi
    done
    return $status
}

rm -rf build/taken
mkdir -p build/taken
export POSTROAD_TEST_REPLY_STREAMS=2500 POSTROAD_TEST_CONNECTION_RUNS=1000 # too many for `make unit`
(
    polite="nice -n 5" # the others are watched by the clock
    run apart $apart
    apart_status=$?
    polite=
    run_own && exit $apart_status
) >build/tests-apart.log 2>&1 &
apart_pid=$!
trap 'kill $apart_pid 2>/dev/null' INT TERM
run shared $shared $(printf -- '--ignore=%s ' tests/integration/stack $own)
shared_status=$?
run_own || shared_status=1
wait $apart_pid
apart_status=$?
test $shared_status -eq 0 || echo "Of the tests on shared servers some failed: see above."
echo "The tests that share no server:"
cat build/tests-apart.log
exit $((shared_status | apart_status))
