//go:build plantstore_one_by_one

package postgres

// grouped is false: each deletion has a round trip and a commit of its own. For
// measuring what a group costs a client that is alone.
const grouped = false
