"""The rules of the queue as pure values: no clock, no chance, no log, no I/O.

Time and randomness are parameters; what has to happen is a return value."""
