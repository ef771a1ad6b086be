"""Needs of the engines, as protocols at the level of operations.

Each method documents whether its effect is durable when it returns, whether repeating it is
harmless, what order it keeps, what may run at the same time, and which errors it raises. A new
method needs, in this order: the contract test, the memory adapter, the real adapter."""
