#!/bin/sh
# Makes .venv with exactly the locked packages. Needs Python >= 3.11 with venv; on Debian as root
# it installs what is missing, elsewhere it says what to install.
set -eu
python=$1
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "postroad needs Python 3.11 or newer as '$python' (set PYTHON=/path/to/python3)" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -q && apt-get install -yq --no-install-recommends python3-venv
    else
        echo "'$python' has no venv module: install it (Debian: apt-get install python3-venv)" >&2
        exit 1
    fi
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "installing $(grep -c == locks/dev.txt) packages of locks/dev.txt into .venv: a minute or two"
.venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r locks/dev.txt
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
