"""A queue's view configuration, recorded and read.

`store` records decisions and adoptions in the history, `leased` keeps what a process may act on,
`evidence` reads from closed slices what an adoption and advice go by. The decisions themselves are
in `postroad.domain.configuration`. Source: ADR 0005.
"""
