package pgtest

import (
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A PoolMode says when a Pooler's client gives its server connection back.
type PoolMode int

const (
	SessionMode     PoolMode = iota // when it leaves
	TransactionMode                 // at the end of each transaction
	StatementMode                   // at the end of each statement: a transaction of several ends the client's connection
)

// Pooler puts what matters to us of PgBouncer in front of a database until the
// end of the test, and returns its URL. Each client is told a process id that is
// made up. In all modes but SessionMode the clients share one server connection.
func Pooler(t testing.TB, server string, mode PoolMode) string {
	t.Helper()
	dial := func() *pgconn.PgConn {
		conn, err := pgconn.Connect(t.Context(), server)
		if err != nil {
			if t.Context().Err() == nil { // and not over
				t.Error(err)
			}
			return nil
		}
		t.Cleanup(func() { conn.Conn().Close() })
		return conn
	}
	shared, turn := dial(), new(sync.Mutex)
	return Proxy(t, server, func(client net.Conn) {
		conn, turn := shared, turn
		if mode == SessionMode {
			conn, turn = dial(), new(sync.Mutex)
		}
		if conn != nil {
			pool(client, conn, turn, mode)
		}
	})
}

// Proxy serves clients until the end of the test, and returns server's URL with
// the proxy's address. Its clients ask for no encryption.
func Proxy(t testing.TB, server string, serve func(client net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer client.Close(); serve(client) })
		}
	})
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = l.Addr().String()
	u.RawQuery = "sslmode=disable"
	if u.User.Username() == "" {
		config, err := pgx.ParseConfig(server)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.User(config.User)
	}
	return u.String()
}

// pool serves one client until it leaves.
func pool(client net.Conn, server *pgconn.PgConn, turn *sync.Mutex, mode PoolMode) {
	backend := pgproto3.NewBackend(client, client)
	if welcome(backend) != nil {
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
		idle, err := passOn(server.Frontend(), backend)
		if err != nil {
			return
		}
		if !idle && mode == StatementMode {
			refuse(backend)
			server.Frontend().SendQuery(&pgproto3.Query{String: "ROLLBACK"}) // for the others
			_, _ = passOn(server.Frontend(), pgproto3.NewBackend(client, io.Discard))
			return
		}
		if backend.Flush() != nil {
			return
		}
		if idle {
			turn.Unlock()
			ours = false
		}
	}
}

// welcome takes a client in.
func welcome(backend *pgproto3.Backend) error {
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return err
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	backend.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	backend.Send(&pgproto3.BackendKeyData{ProcessID: rand.Uint32() | 1<<31, SecretKey: []byte{1, 2, 3, 4}})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return backend.Flush()
}

// refuse ends a client's connection as PgBouncer 1.24 does in statement mode.
func refuse(client *pgproto3.Backend) {
	client.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01",
		Message: "transaction blocks not allowed in statement pooling mode"})
	_ = client.Flush()
}

// passOn sends what the client asked, has the answer ready for it, and tells whether
// the server is in no transaction then.
func passOn(server *pgproto3.Frontend, client *pgproto3.Backend) (idle bool, err error) {
	if err := server.Flush(); err != nil {
		return false, err
	}
	for {
		answer, err := server.Receive()
		if err != nil {
			return false, err
		}
		client.Send(answer)
		if ready, ok := answer.(*pgproto3.ReadyForQuery); ok {
			return ready.TxStatus == 'I', nil
		}
	}
}
