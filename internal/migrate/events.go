package migrate

import (
	"time"
)

// Options are for runs that change a database. The zero value is fine.
type Options struct {
	// LockTimeout is how long a statement may wait for a lock, with everybody
	// who queues up behind it; 0 means DefaultLockTimeout.
	LockTimeout time.Duration
	// LockAttempts is how often a migration is tried that did not get a lock; 0
	// means DefaultLockAttempts. The pauses double, to ten seconds at most.
	LockAttempts int
	// Notify, if set, is told what goes on, by one goroutine at a time.
	Notify func(Event)
}

// What Options mean when they say nothing.
const (
	DefaultLockTimeout  = time.Second
	DefaultLockAttempts = 10
)

// An Event is something that happens during a run.
type Event struct {
	Kind EventKind
	// Migration is the Number-th of Of in this run; not for Queued and Warned.
	Migration  Migration
	Number, Of int
	// Took is for Finished.
	Took time.Duration
	// Lock that is waited for, as in "ACCESS EXCLUSIVE on public.plants", and who is in
	// the way, for Blocked and Retrying; who works, for Queued.
	Lock     string
	Blockers []Blocker
	// Attempt of Attempts failed, the next one comes after Pause, for Retrying.
	Attempt, Attempts int
	Pause             time.Duration
	// Warning is for Warned.
	Warning string
}

// An EventKind says what happened.
type EventKind int

const (
	Queued   EventKind = iota // another run is at work
	Warned                    // something needs attention, but the run goes on
	Started                   // a migration is tried for the first time
	Blocked                   // it waits for a lock that others hold
	Retrying                  // it did not get the lock and was rolled back
	Finished                  // it is applied, or taken back
)

// A Change is a migration that was applied or taken back.
type Change struct {
	Migration
	Took time.Duration
}
