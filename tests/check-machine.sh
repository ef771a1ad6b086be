#!/bin/sh
# Usage: check-machine.sh GOAL... Says what is true of this machine for the targets of the Makefile, and
# ends those that cannot work on it before they prepare anything.
set -eu
system=$(uname -s)
if [ "$system" = Linux ]; then
    case $(uname -r) in
    *[Mm]icrosoft*)
        echo "postroad: under WSL 2 nothing of postroad was ever tried; a Debian 12 with systemd comes closest to what was" >&2
        ;;
    esac
    exit 0
fi
for goal in "$@"; do
    case $goal in
    setup | lock | manifests | check)
        echo "make $goal: on $system this was never tried; postroad is developed and tested on Linux" >&2
        ;;
    *)
        echo "make $goal needs Linux, and this is $system: the embedded engine calls fdatasync and posix_fallocate," \
            "the servers run in Linux namespaces, and pods reach them through a Linux bridge." \
            "Use a virtual machine with Debian 12 (on Windows: WSL 2)." >&2
        exit 1
        ;;
    esac
done
