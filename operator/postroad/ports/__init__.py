"""What the rules need of the world, as protocols at the level of operations.

Each method says whether its effect is durable when it returns, whether repeating it is harmless,
what order it keeps, what may run at the same time, and which errors it raises. A new method needs,
in this order: the memory adapter, a contract test, the real adapter.
"""
