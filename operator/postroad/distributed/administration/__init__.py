"""Operations of administrators on waiting mail and dead letters."""
