# The first process of the machine: what a system has mounted, an address, then the task. The kernel's
# command line gives GUEST_* as variables.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
ip link set lo up
ip link set vec0 up
ip address add "$GUEST_ADDRESS/24" dev vec0
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin PYTHONDONTWRITEBYTECODE=1 HOME=/run TMPDIR=/run
export PYTHONPATH="$GUEST_PROJECT/operator:$GUEST_PROJECT/tests"
cd /run
"$GUEST_PROJECT/.venv/bin/python" -m machine.guest
echo "the task ended with $?"
sync
echo o >/proc/sysrq-trigger
sleep 100
