package migrate_test

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

// pooler is what matters here of PgBouncer: each client is told a process id that
// is made up. In transaction mode all share one server connection and have it for
// a transaction at a time; otherwise each has one of its own.
func pooler(t *testing.T, server string, transactionMode bool) (clientURL string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	dial := func() *pgconn.PgConn {
		conn, err := pgconn.Connect(t.Context(), server)
		if err != nil {
			t.Error(err)
			return nil
		}
		t.Cleanup(func() { conn.Conn().Close() })
		return conn
	}
	shared := dial()
	var turn sync.Mutex
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer client.Close()
				if transactionMode {
					pool(client, shared, &turn)
				} else if own := dial(); own != nil {
					pool(client, own, new(sync.Mutex))
				}
			})
		}
	})
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = l.Addr().String()
	u.RawQuery = "sslmode=disable"
	return u.String()
}

// pool serves one client until it leaves.
func pool(client net.Conn, server *pgconn.PgConn, turn *sync.Mutex) {
	backend := pgproto3.NewBackend(client, client)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	backend.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	backend.Send(&pgproto3.BackendKeyData{ProcessID: rand.Uint32() | 1<<31, SecretKey: []byte{1, 2, 3, 4}})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if backend.Flush() != nil {
		return
	}
	ours := false
	defer func() {
		if ours {
			turn.Unlock()
		}
	}()
	for {
		message, err := backend.Receive()
		if err != nil {
			return
		}
		if _, leaves := message.(*pgproto3.Terminate); leaves {
			return
		}
		if !ours {
			turn.Lock()
			ours = true
		}
		server.Frontend().Send(message)
		switch message.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
		default:
			continue
		}
		if server.Frontend().Flush() != nil {
			return
		}
		for {
			answer, err := server.Frontend().Receive()
			if err != nil {
				return
			}
			backend.Send(answer)
			if ready, ok := answer.(*pgproto3.ReadyForQuery); ok {
				if ready.TxStatus == 'I' {
					turn.Unlock()
					ours = false
				}
				break
			}
		}
		if backend.Flush() != nil {
			return
		}
	}
}

func TestPoolers(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		if err := migrate.RefusePooler(t.Context(), database.Owner); err != nil {
			t.Errorf("direct connection: %v, want no error", err)
		}
	})
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		if err := migrate.RefusePooler(t.Context(), pooler(t, database.Owner, false)); err != nil {
			t.Errorf("pooler in session mode: %v, want no error", err)
		}
	})
	t.Run("transaction", func(t *testing.T) {
		t.Parallel()
		through := pooler(t, database.Owner, true)
		if _, err := migrate.Service().Up(t.Context(), through, migrate.Options{}); !errors.Is(err, migrate.ErrPooler) {
			t.Errorf("Up through a pooler in transaction mode: %v, want ErrPooler", err)
		}
		if got := applied(t, database.Owner); got != 0 {
			t.Errorf("%d migrations applied, want none", got)
		}
	})
	t.Run("plan through a pooler", func(t *testing.T) {
		t.Parallel()
		through := pooler(t, database.Owner, true)
		p, err := migrate.Service().Plan(t.Context(), through)
		if err != nil || len(p.Pending) != len(migrate.All()) {
			t.Errorf("plan of %d, %v; want all pending", len(p.Pending), err)
		}
	})
}
