"""Words that every protocol shares: identities, entries, effects, quorum arithmetic, refusals, errors."""
