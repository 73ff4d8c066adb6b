"""Reading keyspaces: `reader` divides the token ranges, `tasks` scan some of them, `rows` makes columns (P26)."""
