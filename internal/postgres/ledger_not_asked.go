//go:build plantstore_break_ledger_check

package postgres

// ledgerIsAsked is false: retries forget that an earlier attempt may have been
// committed. For proving that the checker behind `make chaos` can fail.
const ledgerIsAsked = false
