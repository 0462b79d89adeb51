package pgtest

import (
	"context"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Pooler is a connection pooler in transaction mode in front of a database, and returns its
// URL. As PgBouncer does, it refuses startup parameters, makes up the process id that a
// client gets, and gives each transaction a server session: here two in turn, so that a
// lone client never gets the same one twice. Prepared statements stay in their session.
func Pooler(t testing.TB, server string) string {
	t.Helper()
	sessions := make(chan *pgconn.PgConn, 2)
	for range cap(sessions) {
		conn, err := pgconn.Connect(t.Context(), server)
		if err != nil {
			t.Fatal(err)
		}
		sessions <- conn
	}
	t.Cleanup(func() {
		for range cap(sessions) {
			if conn := <-sessions; conn != nil {
				conn.Close(context.Background())
			}
		}
	})
	return Proxy(t, server, func(client net.Conn) {
		backend := pgproto3.NewBackend(client, client)
		if !handshake(backend) {
			return
		}
		for {
			message, err := backend.Receive()
			if err != nil {
				return
			}
			if _, leaves := message.(*pgproto3.Terminate); leaves {
				return
			}
			session := <-sessions
			if session == nil || !relay(backend, session, message) {
				sessions <- replace(session, server)
				return
			}
			sessions <- session
		}
	})
}

// replace ends a session, with the transaction that its client left open, and returns another
// one, or nil where the server is away.
func replace(session *pgconn.PgConn, server string) *pgconn.PgConn {
	if session != nil {
		session.Conn().Close()
	}
	next, err := pgconn.Connect(context.Background(), server)
	if err != nil {
		return nil
	}
	return next
}

// Proxy calls serve for each client until the end of the test, and returns server's URL with
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
			wg.Go(func() {
				defer client.Close()
				defer context.AfterFunc(t.Context(), func() { client.Close() })() // the test is over
				serve(client)
			})
		}
	})
	config, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	return (&url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password),
		Host: l.Addr().String(), Path: "/" + config.Database, RawQuery: "sslmode=disable"}).String()
}

// handshake answers the startup of a client, and reports whether it goes on.
func handshake(backend *pgproto3.Backend) bool {
	start, err := backend.ReceiveStartupMessage()
	if err != nil {
		return false
	}
	startup, ok := start.(*pgproto3.StartupMessage)
	if !ok {
		return false // a cancel request
	}
	tracked := []string{"user", "database", "client_encoding", "datestyle", "timezone", "standard_conforming_strings", "application_name"}
	for name := range startup.Parameters {
		if !slices.Contains(tracked, name) {
			backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
			_ = backend.Flush()
			return false
		}
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	backend.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	backend.Send(&pgproto3.BackendKeyData{ProcessID: rand.Uint32() | 1<<31, SecretKey: []byte{1, 2, 3, 4}})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return backend.Flush() == nil
}

// relay passes messages on, from the first one to the end of the transaction.
func relay(client *pgproto3.Backend, session *pgconn.PgConn, message pgproto3.FrontendMessage) bool {
	server := session.Frontend()
	for {
		server.Send(message)
		switch message.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			if server.Flush() != nil {
				return false
			}
			for status := byte(0); status == 0; {
				answer, err := server.Receive()
				if err != nil {
					return false
				}
				client.Send(answer)
				if ready, ok := answer.(*pgproto3.ReadyForQuery); ok {
					status = ready.TxStatus
				}
				if status == 'I' {
					return client.Flush() == nil
				}
			}
			if client.Flush() != nil {
				return false
			}
		}
		var err error
		if message, err = client.Receive(); err != nil {
			return false
		}
		if _, leaves := message.(*pgproto3.Terminate); leaves {
			return false
		}
	}
}
