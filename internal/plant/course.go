package plant

import "time"

// A Course tells how a deletion went, whatever came of it. It is for logs, metrics and
// traces.
type Course struct {
	// Attempts are the first attempts and the last one, MostAttempts at most, and Tried is
	// how many there were.
	Attempts []Attempt
	Tried    int
	// Batch is how many deletions the last attempt had in its transaction: 1 is this
	// one alone.
	Batch int
	// How long it waited for earlier requests for the same plant, for others in flight
	// to end, for a connection or the start of its batch, and for locks of others in
	// the database.
	ForPlant, ForOthers, ForConnection, ForLock time.Duration
}

// MostAttempts bounds the attempts that a Course has.
const MostAttempts = 16

// An Attempt is one try at a deletion.
type Attempt struct {
	Began time.Time
	Took  time.Duration
	// Failed is why it did not bring the outcome, in a word; else it is empty.
	Failed string
}

// Note adds an attempt that ends now.
func (c *Course) Note(began time.Time, failed string) {
	c.Tried++
	c.Attempts = append(c.Attempts[:min(len(c.Attempts), MostAttempts-1)], Attempt{began, time.Since(began), failed})
}
