package postgres

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// A wire is the connection between the service and PostgreSQL, with a fault that
// can be armed.
type wire struct {
	// loseAnswers is how many of the next answers to a DELETE are thrown away
	// with their connection: the server commits, and we are not told.
	loseAnswers atomic.Int32
	// mute makes every connection that is open now silent, as when the peer is
	// gone without a word.
	mute atomic.Int64 // connections made up to this moment, in Unix nanoseconds
}

type faultyConn struct {
	net.Conn
	wire  *wire
	made  int64
	armed atomic.Bool
}

func (c *faultyConn) muted() bool { return c.made <= c.wire.mute.Load() }

func (c *faultyConn) Write(b []byte) (int, error) {
	if c.muted() {
		return len(b), nil
	}
	// A Bind of the DELETE, prepared or not, comes with the settings' values.
	if bytes.Contains(b, []byte("tester")) && c.wire.loseAnswers.Add(-1) >= 0 {
		c.armed.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *faultyConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		switch {
		case c.armed.Load():
			// Let the server answer to the end, and lose it.
			if err != nil || bytes.HasSuffix(b[:n], []byte{'Z', 0, 0, 0, 5, 'I'}) {
				c.Conn.Close()
				return 0, io.ErrUnexpectedEOF
			}
		case err != nil || !c.muted():
			return n, err
		}
	}
}

// lossy puts a wire between the service and its database.
func lossy(t *testing.T, database pgtest.Database, parameters string) (store, *wire) {
	t.Helper()
	s := storeOn(t, database, parameters)
	w := new(wire)
	config := s.pool.Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &faultyConn{Conn: conn, wire: w, made: time.Now().UnixNano()}, nil
	}
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s.DB.pool.Close()
	s.DB.pool = p
	return s, w
}

func TestLostAnswerOfACommit(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	s.plant(t, 1)
	w.loseAnswers.Store(1)
	result, err := s.plants.Delete(in(t, 5*time.Second), deletion(1, "k"))
	if err != nil {
		t.Fatalf("Delete whose answer was lost: %v, want none", err)
	}
	if w.loseAnswers.Load() >= 1 {
		t.Fatal("no answer was lost: this test tests nothing")
	}
	if result.Replayed {
		t.Error("Replayed is set, though the first attempt was of the same request")
	}
	if got := len(s.ledger(t)); s.has(t, 1) || got != 1 {
		t.Errorf("plant there: %v, ledger rows: %d; want gone and 1", s.has(t, 1), got)
	}
}

func TestLostAnswersUntilTheDeadline(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	s.plant(t, 1)
	w.loseAnswers.Store(1 << 20)
	_, err := s.plants.Delete(in(t, time.Second), deletion(1, "k"))
	if !errors.Is(err, plant.ErrUnknown) {
		t.Fatalf("Delete whose answers were all lost: %v, want ErrUnknown", err)
	}
	w.loseAnswers.Store(0)
	result, err := s.plants.Delete(in(t, 5*time.Second), deletion(1, "k"))
	if err != nil || !result.Replayed {
		t.Errorf("the retry = %+v, %v; want replayed", result, err)
	}
	if got := len(s.ledger(t)); got != 1 {
		t.Errorf("%d ledger rows, want 1", got)
	}
}

func TestLostAnswerWhenSomebodyElseWasFirst(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	s.plant(t, 1)
	s.exec(t, `DELETE FROM plants WHERE id = 1`)
	w.loseAnswers.Store(1)
	_, err := s.plants.Delete(in(t, 5*time.Second), deletion(1, "k"))
	var earlier *plant.DeletedEarlierError
	if !errors.As(err, &earlier) {
		t.Errorf("Delete: %v, want a DeletedEarlierError", err)
	}
}

func TestSilentPeer(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	s.plant(t, 1)
	s.plant(t, 2)
	if _, err := s.plants.Delete(in(t, 5*time.Second), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // idle for more than a second: it will be pinged
	w.mute.Store(time.Now().UnixNano())
	start := time.Now()
	if _, err := s.plants.Delete(in(t, 5*time.Second), deletion(2, "k")); err != nil {
		t.Fatalf("Delete after the peer fell silent: %v, want none", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("Delete after the peer fell silent took %s, want about %s", took, pingTimeout)
	}
}

func TestBackendsTerminated(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	super := pgtest.Pool(t, database.Super)
	const plants = 200
	s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, 200) i`)
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if _, err := super.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE usename = 'plantstore_app' AND datname = current_database()`); err != nil {
				t.Errorf("terminate: %v", err)
				return
			}
		}
	}()
	for i := range int64(plants) {
		if _, err := s.plants.Delete(in(t, 10*time.Second), deletion(i+1, "k")); err != nil {
			t.Errorf("Delete(%d) while backends are terminated: %v, want none", i+1, err)
		}
	}
	close(stop)
	<-stopped
	if got := len(s.ledger(t)); got != plants {
		t.Errorf("%d ledger rows, want %d", got, plants)
	}
}

// All connections fall silent in mid-statement, as when the primary's host is
// gone without a word. Giving them up must not keep their places in the pool.
func TestSilentPeersDoNotKeepThePool(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "pool_max_conns=2")
	s.sample(t, 100)
	errs, _ := s.deleteAtOnce(t, ids(1, 50))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	w.mute.Store(time.Now().UnixNano())
	errs, slowest := s.deleteAtOnce(t, ids(51, 100))
	if err := errors.Join(errs...); err != nil {
		t.Errorf("after all peers fell silent: %v, want no error", err)
	}
	if slowest > 10*time.Second {
		t.Errorf("the slowest took %s, want a few seconds", slowest)
	}
}
