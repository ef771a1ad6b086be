"""Power cuts of a machine that takes and delivers mail: a kernel of its own, whose plug is pulled.

The machine is User Mode Linux: a whole kernel in one process, so SIGKILL is the end of its power.
It sees the files of this machine, which it cannot change, and has one disk, which a process
outside keeps (`disk`). What the machine acknowledged and delivered is known outside (`world`).
"""
