"""The store of one owner: recovery, engine, items, maintenance."""
