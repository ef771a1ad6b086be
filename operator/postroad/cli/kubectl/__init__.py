"""`kubectl mailqueue`: the commands of a queue, run in one of its pods."""
