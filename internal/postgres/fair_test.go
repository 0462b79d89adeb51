package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// unreachable makes every further connection of the service be refused, once it
// returns true.
func (s *store) unreachable(t *testing.T) *atomic.Bool {
	t.Helper()
	var down atomic.Bool
	config := s.pool.Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if down.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("refused by this test")}
		}
		return dial(ctx, network, addr)
	}
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s.DB.pool.Close()
	s.DB.pool = p
	return &down
}

// terminateAll ends every session of the service, and returns when they are gone.
func terminateAll(t *testing.T, super *pgxpool.Pool) {
	t.Helper()
	const sessions = ` FROM pg_stat_activity WHERE usename = 'plantstore_app' AND datname = current_database()`
	if _, err := super.Exec(t.Context(), `SELECT pg_terminate_backend(pid)`+sessions); err != nil {
		t.Fatal(err)
	}
	for n := 1; n > 0; time.Sleep(time.Millisecond) {
		if err := super.QueryRow(t.Context(), `SELECT count(*)`+sessions).Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
}

// The database stops entirely while a connection to it idles. Nothing is sent on
// that, so it is certain that nothing was deleted.
func TestADatabaseThatStoppedWhileNobodyAsked(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	down := s.unreachable(t)
	s.plant(t, 1)
	s.plant(t, 2)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	down.Store(true)
	terminateAll(t, pgtest.Pool(t, database.Super))
	_, err := s.plants.Delete(in(t, time.Second), deletion(2, "k"))
	if !errors.Is(err, plant.ErrUnavailable) || errors.Is(err, plant.ErrUnknown) {
		t.Errorf("Delete: %v, want ErrUnavailable and nothing unknown", err)
	}
	if !s.has(t, 2) {
		t.Error("the plant is gone")
	}
}

// The end of a connection is noticed beneath TLS, too.
func TestGone(t *testing.T) {
	t.Parallel()
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(certified.Certificate())
	layers := map[string]struct{ client, server func(net.Conn) net.Conn }{
		"plain": {func(c net.Conn) net.Conn { return c }, func(c net.Conn) net.Conn { return c }},
		"TLS": {
			func(c net.Conn) net.Conn {
				return tls.Client(c, &tls.Config{RootCAs: trusted, ServerName: "example.com"})
			},
			func(c net.Conn) net.Conn { return tls.Server(c, certified.TLS) },
		},
	}
	ends := map[string]func(net.Conn) error{
		"a word":        func(c net.Conn) error { _, err := c.Write([]byte("FATAL")); return err },
		"end of stream": func(c net.Conn) error { return bare(c).CloseWrite() },
		"reset":         func(c net.Conn) error { return errors.Join(bare(c).SetLinger(0), bare(c).Close()) },
	}
	for layer, wrap := range layers {
		for end, do := range ends {
			t.Run(layer+", "+end, func(t *testing.T) {
				t.Parallel()
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer listener.Close()
				ours, err := net.Dial("tcp", listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer ours.Close()
				theirs, err := listener.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer theirs.Close()
				client, server := wrap.client(&briefFarewell{ours}), wrap.server(theirs)
				said := make(chan error, 1)
				go func() { _, err := server.Write([]byte("hello")); said <- err }()
				if _, err := io.ReadFull(client, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
				if err := <-said; err != nil {
					t.Fatal(err)
				}
				if gone(client) {
					t.Fatal("gone before anything happened")
				}
				if err := do(server); err != nil {
					t.Fatal(err)
				}
				for waited := in(t, patience); !gone(client); time.Sleep(time.Millisecond) {
					if waited.Err() != nil {
						t.Fatal("not gone")
					}
				}
			})
		}
	}
}

// bare returns a connection without TLS around it.
func bare(c net.Conn) *net.TCPConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*net.TCPConn)
}
