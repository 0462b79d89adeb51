//go:build !plantstore_break_ledger_check

package postgres

// ledgerIsAsked is false only in a build that the checker behind `make chaos` has
// to catch.
const ledgerIsAsked = true
