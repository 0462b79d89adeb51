package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"plantstore/internal/plant"
)

// A purpose is what the service needs a connection for. Each has a share of the
// pool's connections, of which the others get none: whoever waits for a connection
// waits for his own kind.
type purpose int

const (
	// together: batches, each on a lane of its own.
	together purpose = iota
	// retried: deletions of plants that were difficult a moment ago. Each takes a few
	// milliseconds, unless a deferred trigger of the store's takes long.
	retried
	// suspected: deletions that took long in a batch, by nature or because the machine was
	// busy. Those which a moment's patience is enough for don't wait for the others.
	suspected
	// slow: deletions that take long by nature.
	slow
	// locked: deletions that wait for others to give a lock away.
	locked
	// lost: finding out what became of a deletion whose answer was lost, and
	// trying it again. Each takes a few milliseconds.
	lost
	// budgeted: batches of principals that have a deletion budget, and looking up what
	// those want who have used theirs up.
	budgeted
	// explained: finding out why a deletion was refused, and recording that. No deletion is
	// tried here: others' commits may take long.
	explained
	// known: tokens that were good when they were last read.
	known
	// unknown: tokens that may be made up.
	unknown
	// watched: readiness, and what else no request waits for.
	watched
	purposes
)

// String returns the purpose's name in the metrics.
func (p purpose) String() string {
	return [purposes]string{"batches", "retried", "suspected", "slow", "locked", "lost", "budgeted", "explained", "known_tokens", "unknown_tokens", "readiness"}[p]
}

// dealt is the order in which connections are dealt out to the purposes.
var dealt = [...]purpose{
	// What works: one for each purpose, and one for a batch to pass another.
	retried, suspected, slow, locked, lost, budgeted, explained, together, together, known, unknown, watched,
	// One more for each purpose that somebody may hold up, so that one deletion does
	// not stop the next.
	retried, suspected, slow, locked, lost, budgeted, explained,
	// Lanes for a database that is far away. In a simulation of one with a processor
	// for us, at 5 ms, 12 give 32 and 128 clients within 5 % of the most that any
	// number does.
	together, together, together, together, together, together, together, together, together, together,
}

const (
	// LeastConns is the size of the smallest pool that works. A smaller pool_max_conns
	// counts as this.
	LeastConns = 12
	// defaultConns is the size of the pool unless the URL has a pool_max_conns.
	// Connections are opened when they are needed, which most are seldom, or far from
	// the database.
	defaultConns = len(dealt)
)

// shares are the parts of a pool.
type shares struct {
	size  [purposes]int
	parts [purposes]*semaphore.Weighted // each first come, first served
	// inUse and waiting count connections and who waits for one, for the metrics and for who
	// wants to know whether one is free.
	inUse, waiting [purposes]atomic.Int64
	// trouble is why the last connection that was opened could not be had; nil since one
	// was given back in order. One that is lost says nothing: whether it was the database
	// that went away, or only took longer than one request had, the next one tells.
	trouble atomic.Pointer[error]
}

func newShares(conns int) *shares {
	s := new(shares)
	for i := range conns {
		s.size[dealt[i%len(dealt)]]++
	}
	for p, size := range s.size {
		s.parts[p] = semaphore.NewWeighted(int64(size))
	}
	return s
}

// inVain is the error of a deletion whose time was over while it waited for others
// of its kind: the database can't be reached if that was the last to be heard of
// it, else it is busy. Nothing was tried.
func (s *shares) inVain(waited error) error {
	if why := s.trouble.Load(); why != nil {
		return wrap(plant.ErrUnavailable, *why)
	}
	return fmt.Errorf("%w: others were first: %w", plant.ErrBusy, waited)
}

var errLost = errors.New("the connection was lost")

// A borrowed connection is one of a share's.
type borrowed struct {
	*pgxpool.Conn
	db   *DB
	what purpose
	// brokenOff is set if a lost connection is no fault: whoever used it ended the query.
	brokenOff bool
}

// borrow waits for a connection of a share, in line, until ctx ends. Then it connects,
// if no connection is open, for limit at the most.
func (db *DB) borrow(ctx context.Context, what purpose, limit time.Duration) (*borrowed, error) {
	s := db.shares
	s.waiting[what].Add(1)
	err := s.parts[what].Acquire(ctx, 1)
	s.waiting[what].Add(-1)
	if err != nil {
		return nil, s.inVain(err)
	}
	s.inUse[what].Add(1)
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := db.acquire(limited)
	if err != nil {
		if ctx.Err() == nil { // otherwise it is the caller's time that was over
			s.trouble.Store(&err)
			db.noteFault(faultConnect, err)
		}
		s.giveBack(what)
		return nil, err
	}
	return &borrowed{Conn: conn, db: db, what: what}, nil
}

// free tells whether a connection of a share could be had a moment ago.
func (s *shares) free(what purpose) bool { return s.inUse[what].Load() < int64(s.size[what]) }

func (s *shares) giveBack(what purpose) {
	s.inUse[what].Add(-1)
	s.parts[what].Release(1)
}

// Release gives the connection back. A connection that was lost keeps its place in
// the pool until it is closed, and so in its share.
func (b *borrowed) Release() {
	conn := b.Conn.Conn().PgConn()
	closed := conn.IsClosed() // once it is released it is not ours to look at
	b.Conn.Release()
	if !closed {
		b.db.shares.trouble.Store(nil)
		b.db.shares.giveBack(b.what)
		return
	}
	if !b.brokenOff {
		b.db.noteFault(faultLost, errLost)
	}
	go func() {
		<-conn.CleanupDone()
		b.db.shares.giveBack(b.what)
	}()
}

// lendTimeout never matters: a borrower's ctx ends sooner.
const lendTimeout = time.Minute

// lend lends a connection of a share out.
func (db *DB) lend(ctx context.Context, what purpose, use func(*pgx.Conn) error) error {
	conn, err := db.borrow(ctx, what, lendTimeout)
	if err != nil {
		return err
	}
	defer conn.Release()
	err = use(conn.Conn.Conn())
	conn.brokenOff = errors.Is(ctx.Err(), context.Canceled) // as the service ended
	return err
}
