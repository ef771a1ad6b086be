#!/bin/sh
# Every test, in two runs side by side: those that share the real servers one after the other, and
# meanwhile those that need none, or only an API server of their own. Most of either is waiting.
# Tests that start servers of their own, or Spark, go to the run that is free for them first.
# Usage: run-all.sh PYTHON. With POSTROAD_TEST_AGAIN set, what failed is run once more, alone.
set -u
python=$1
shared=${SHARED_TESTS:-tests/contract tests/integration tests/e2e}
apart=${APART_TESTS:-tests/unit tests/crash tests/controller operator}
own=${OWN_TESTS:-tests/integration/faults tests/integration/stack tests/pipeline}

run() { # NAME ARGUMENT...
    name=$1
    shift
    ${polite:-} "$python" -m pytest --durations=15 --durations-min=5 -o cache_dir=".pytest_cache/$name" "$@"
}

run_twice() { # NAME ARGUMENT...
    run "$@" && return
    test -n "${POSTROAD_TEST_AGAIN:-}" && run "$@" --last-failed
}

run_own() { # the folders of `own` that no run has taken yet
    status=0
    for folder in $own; do
        mkdir "build/taken/$(basename "$folder")" 2>/dev/null || continue
        run_twice "$(basename "$folder")" "$folder" || status=1
    done
    return $status
}

rm -rf build/taken
mkdir -p build/taken
export POSTROAD_TEST_REPLY_STREAMS=2500 POSTROAD_TEST_CONNECTION_RUNS=1000 # too many for `make unit`
(
    polite="nice -n 5" # the others are watched by the clock
    run_twice apart $apart
    apart_status=$?
    polite=
    run_own && exit $apart_status
) >build/tests-apart.log 2>&1 &
apart_pid=$!
trap 'kill $apart_pid 2>/dev/null' INT TERM
run_twice shared $shared $(printf -- '--ignore=%s ' $own)
shared_status=$?
run_own || shared_status=1
wait $apart_pid
apart_status=$?
test $shared_status -eq 0 || echo "Of the tests on shared servers some failed: see above."
echo "The tests that share no server:"
cat build/tests-apart.log
exit $((shared_status | apart_status))
