//go:build !plantstore_one_by_one

package postgres

// grouped is false only in a build that `make bench` compares with.
const grouped = true
