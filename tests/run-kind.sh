#!/bin/sh
# The demo, then the e2e tests, over Docker and kind; run by `python -m stack engine run`, which has an
# engine there. Usage: run-kind.sh PYTHON
set -eu
python=$1
unset KUBECONFIG POSTROAD_STACK_PROVIDER
export PYTHONPATH=operator:tests
cd "$(dirname "$0")/.."
trap '(cd tests && "../$python" -m stack down)' EXIT
(cd tests && "../$python" -m demo)
(cd tests && "../$python" -m stack up helm)
variables=$(cd tests && "../$python" -m stack env)
eval "$variables"
export POSTROAD_REQUIRE=rabbitmq,cassandra,s3,kubernetes,helm
"$python" -m pytest ${TESTS:-tests/e2e}
