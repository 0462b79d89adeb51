package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/plant"

	"github.com/google/go-cmp/cmp"
)

// slowPlants takes its time for every deletion.
func slowPlants(d time.Duration) fakePlants {
	return func(context.Context, plant.Deletion) (plant.Result, error) {
		time.Sleep(d)
		return plant.Result{}, nil
	}
}

func TestEndIsGraceful(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.DrainDelay = 5 * time.Second
		c.Plants = slowPlants(8 * time.Second)
		s := run(t, c, newPipeListener(), newPipeListener())
		readyz := request{method: "GET", target: "/readyz"}
		if status, _, body := exchangeRaw(t, dial(t, s.admin), readyz); status != 200 {
			t.Errorf("/readyz: %d %q, want 200", status, body)
		}

		asked := time.Now()
		before, during := make(chan answer, 1), make(chan answer, 1)
		conn := dial(t, s.public)
		go func() { before <- askOn(t, conn, del()) }()
		synctest.Wait()
		s.end()
		synctest.Wait()

		if status, _, body := exchangeRaw(t, dial(t, s.admin), readyz); status != 503 || string(body) != "shutting down\n" {
			t.Errorf("/readyz: %d %q, want 503 and that it is shutting down", status, body)
		}
		want := []string{`plantstore_database_up 1`, `plantstore_not_ready{reason="shutting_down"} 1`}
		if diff := cmp.Diff(want, append(counted(t, s.Server, "plantstore_database_up"), counted(t, s.Server, "plantstore_not_ready")...)); diff != "" {
			t.Errorf("metrics during the drain delay (-want +got):\n%s", diff)
		}
		withBody := del("Content-Length: 2")
		withBody.target, withBody.body = "/plants/x", "{}"
		for want, quick := range map[int]request{200: {method: "GET", target: "/openapi.yaml"}, 40001: withBody} {
			if a := s.ask(t, quick); a.code() != want || a.header.Get("Connection") != "close" {
				t.Errorf("%s %s during the drain delay: answer %d, Connection %q; want %d, close", quick.method, quick.target, a.code(), a.header.Get("Connection"), want)
			}
		}
		conn = dial(t, s.public)
		go func() { during <- askOn(t, conn, del()) }()

		time.Sleep(c.DrainDelay + time.Second)
		if _, err := s.public.(*pipeListener).dial(); err == nil {
			t.Error("a connection is taken after the drain delay, want it refused")
		}
		if status, _, _ := exchangeRaw(t, dial(t, s.admin), request{method: "GET", target: "/livez"}); status != 200 {
			t.Errorf("/livez: %d while requests are in flight, want 200", status)
		}
		if got, want := (<-before).status, 204; got != want {
			t.Errorf("request from before the end: answer %d, want %d", got, want)
		}
		if got, want := (<-during).status, 204; got != want {
			t.Errorf("slow request from during the drain delay: answer %d, want %d", got, want)
		}
		s.stop(t)
		if took := time.Since(asked); took > 9*time.Second {
			t.Errorf("Serve returned %v after the last request came, want it as soon as that was answered", took)
		}
	})
}

func TestEndWithoutRequestsTakesTheDrainDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.DrainDelay = 5 * time.Second
		s := run(t, c, newPipeListener(), newPipeListener())
		dial(t, s.public) // idle
		ended := time.Now()
		s.stop(t)
		if took := time.Since(ended); took < c.DrainDelay || took > c.DrainDelay+6*time.Second {
			t.Errorf("Serve returned after %v, want about the drain delay of %v", took, c.DrainDelay)
		}
	})
}

func TestEndDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.DrainDelay = time.Second
		c.RequestTimeout = time.Minute
		c.Plants = slowPlants(20 * time.Second)
		s := run(t, c, newPipeListener(), newPipeListener())
		conn := dial(t, s.public)
		io.WriteString(conn, "DELETE /plants/1 HTTP/1.1\r\nHost: plants.example\r\n"+asAlice+"\r\n\r\n")
		synctest.Wait()
		s.end()
		ended := time.Now()
		err := <-s.stopped
		if err == nil || !strings.Contains(err.Error(), "still in flight after 10s") {
			t.Errorf("Serve: %v, want an error that tells of requests in flight", err)
		}
		if took, want := time.Since(ended), c.DrainDelay+c.ShutdownTimeout; took != want {
			t.Errorf("Serve returned after %v, want %v", took, want)
		}
		if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			t.Error("the request was answered, want its connection cut")
		}
		time.Sleep(20 * time.Second) // until the deletion is done, too
	})
}

// net/http looks every half second whether all is answered, and a connection on which
// nothing has come yet is in flight to it.
func TestEndKnowsWhatWasAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.ShutdownTimeout = 300 * time.Millisecond // it looks after 255 to 281 ms, and then after 500 more
		c.Plants = slowPlants(295 * time.Millisecond)
		s := run(t, c, newPipeListener(), newPipeListener())
		dial(t, s.public)
		conn := dial(t, s.public)
		got := make(chan answer, 1)
		go func() { got <- askOn(t, conn, del()) }()
		synctest.Wait()
		s.stop(t)
		if a := <-got; a.status != 204 {
			t.Errorf("answer %d, want 204", a.status)
		}
	})
}

func TestServeReportsALostListener(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.DrainDelay = time.Hour // is for an end that was asked for
		s := run(t, c, newPipeListener(), newPipeListener())
		synctest.Wait()
		lost := time.Now()
		close(s.public.(*pipeListener).broken)
		if err := <-s.stopped; err == nil || !strings.Contains(err.Error(), "serve on pipe") {
			t.Errorf("Serve: %v, want an error that names the listener", err)
		}
		if took := time.Since(lost); took > time.Second {
			t.Errorf("Serve returned after %v, want it at once", took)
		}
	})
}

func TestSlowHeadersAreCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t, testConfig(), newPipeListener(), newPipeListener())
		conn := dial(t, s.public)
		started := time.Now()
		io.WriteString(conn, "DELETE /plants/1 HTTP/1.1\r\nHost: plants.example\r\n")
		answered, err := io.ReadAll(conn)
		if err != nil || len(answered) > 0 {
			t.Errorf("read %q, %v; want the connection closed without an answer", answered, err)
		}
		if took, want := time.Since(started), 5*time.Second; took != want {
			t.Errorf("connection closed after %v, want %v", took, want)
		}
	})
}

// A client that says nothing, sends its body bit by bit, never reads its answer or
// has no further request keeps its connection for a while and not for ever.
func TestSlowClientsAreCut(t *testing.T) {
	t.Parallel()
	const head = " HTTP/1.1\r\nHost: plants.example\r\n"
	for _, tt := range []struct {
		name, request   string
		trickles, reads bool
		admin           bool
		after           time.Duration
	}{
		{"silent", "", false, true, false, 5 * time.Second},
		{"body", "DELETE /plants/1" + head + "Content-Length: 4000\r\n\r\n", true, true, false, lingerTimeout},
		{"reader", "GET /docs/swagger-ui-bundle.js" + head + "\r\n", false, false, false, 15 * time.Second},
		{"idle", "GET /openapi.yaml" + head + "\r\n", false, true, false, 2 * time.Minute},
		{"silent operator", "", false, true, true, 5 * time.Second},
		{"operator who does not read", "GET /metrics" + head + "\r\n", false, false, true, 15 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := run(t, testConfig(), newPipeListener(), newPipeListener())
				client, server := net.Pipe()
				watched := &watchedConn{Conn: server, closed: make(chan struct{})}
				listener := s.public
				if tt.admin {
					listener = s.admin
				}
				listener.(*pipeListener).conns <- watched
				began := time.Now()
				var group sync.WaitGroup
				if tt.reads {
					group.Go(func() { io.Copy(io.Discard, client) })
				}
				group.Go(func() {
					_, err := io.WriteString(client, tt.request)
					for ; err == nil && tt.trickles; time.Sleep(time.Second) {
						_, err = io.WriteString(client, " ")
					}
				})
				<-watched.closed
				if took := time.Since(began); took != tt.after {
					t.Errorf("the connection is closed after %s, want %s", took, tt.after)
				}
				client.Close()
				group.Wait()
			})
		})
	}
}

// A watchedConn tells when it is closed.
type watchedConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *watchedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func TestSlowDeletionIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.RequestTimeout = 29 * time.Second // more than net/http has for reading
		c.Plants = slowPlants(28 * time.Second)
		s := run(t, c, newPipeListener(), newPipeListener())
		if got, want := s.ask(t, del()).status, 204; got != want {
			t.Errorf("answer %d, want %d", got, want)
		}
	})
}

// isOpen reports whether a connection that nothing is sent on is open.
func isOpen(conn net.Conn) bool {
	conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	defer conn.SetReadDeadline(time.Time{})
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// shed checks how many requests, or connections, were turned away for a cause.
func (s *Server) shed(t *testing.T, cause string, want int) {
	t.Helper()
	line := fmt.Sprintf(`plantstore_sheds_total{cause=%q} %d`, cause, want)
	if all := samples(t, s, "plantstore_sheds_total"); !slices.Contains(all, line) {
		t.Errorf("%q, want %s", all, line)
	}
}

// Nothing is kept of a connection that has ended, whatever was said on it.
func TestConnectionsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })}
		listener := newPipeListener()
		l := limited(srv, listener, 64)
		go srv.Serve(l)
		defer srv.Close()
		request := "DELETE /plants/1 HTTP/1.1\r\nHost: store\r\n\r\n"
		for _, said := range []string{"", request[:20], "no request\r\n\r\n", request, request + request} {
			conn := dial(t, listener)
			go io.Copy(io.Discard, conn)
			io.WriteString(conn, said)
			synctest.Wait()
			conn.Close()
		}
		synctest.Wait()
		if known, quiet := len(l.all), l.quiet.Len(); known+quiet+l.open > 0 {
			t.Errorf("%d connections are known, %d quiet and %d open when all have ended, want none", known, quiet, l.open)
		}
	})
}

func TestIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.MaxConnections = 50
		s := run(t, c, newPipeListener(), newPipeListener())
		conns := make([]net.Conn, c.MaxConnections+10)
		for i := range conns {
			began := time.Now()
			conns[i] = dial(t, s.public)
			if got, took := askOn(t, conns[i], del()).status, time.Since(began); got != 204 || took > 0 {
				t.Errorf("client %d: answer %d after %s, want 204 at once", i, got, took)
			}
			time.Sleep(10 * time.Millisecond)
		}
		for i, conn := range conns {
			if want := i >= 10; isOpen(conn) != want {
				t.Errorf("connection %d is open: %v, want %v", i, !want, want)
			}
		}
		// Who asks again is not idle for longest any more.
		if got := askOn(t, conns[10], del()).status; got != 204 {
			t.Errorf("second request: answer %d, want 204", got)
		}
		s.ask(t, del())
		if !isOpen(conns[10]) || isOpen(conns[11]) {
			t.Error("the connection that was of use just now made room, want the next one to")
		}
		s.shed(t, shedConnections, 11)
	})
}

func TestSilentConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.MaxConnections = 3
		s := run(t, c, newPipeListener(), newPipeListener())
		for range c.MaxConnections {
			dial(t, s.public)
		}
		began := time.Now()
		if got := s.ask(t, del()).status; got != 204 {
			t.Errorf("answer %d, want 204", got)
		}
		if took := time.Since(began); took < speechless || took > 2*speechless {
			t.Errorf("answer after %s, want silent connections to have %s", took, speechless)
		}
	})
}

func TestMaxConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slow = 3 * time.Second
		c := testConfig()
		c.MaxConnections = 2
		c.Plants = slowPlants(slow)
		s := run(t, c, newPipeListener(), newPipeListener())
		began := time.Now()
		var group sync.WaitGroup
		for i := range 2 * c.MaxConnections {
			conn := dial(t, s.public)
			group.Go(func() {
				want := slow * time.Duration(1+i/c.MaxConnections)
				got := askOn(t, conn, del("Connection: close"))
				if took := time.Since(began); got.status != 204 || took != want {
					t.Errorf("client %d: answer %d after %s, want 204 after %s", i, got.status, took, want)
				}
			})
		}
		group.Wait()
	})
}

func TestTheEndLeavesNobodyWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.MaxConnections = 1
		c.Plants = slowPlants(5 * time.Second)
		s := run(t, c, newPipeListener(), newPipeListener())
		first := make(chan answer, 1)
		conn := dial(t, s.public)
		go func() { first <- askOn(t, conn, del()) }()
		synctest.Wait()
		waiting := dial(t, s.public)
		s.stop(t)
		if got := (<-first).status; got != 204 {
			t.Errorf("request in flight: answer %d, want 204", got)
		}
		if isOpen(waiting) {
			t.Error("the connection that waited for room is open after the end")
		}
	})
}

func TestOperatorsConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t, testConfig(), newPipeListener(), newPipeListener())
		livez := request{method: "GET", target: "/livez"}
		first := dial(t, s.admin)
		exchangeRaw(t, first, livez)
		synctest.Wait() // until the server has noted that it is idle, before all others
		for range AdminConnections {
			if status, _, body := exchangeRaw(t, dial(t, s.admin), livez); status != 200 {
				t.Errorf("/livez: %d %q, want 200", status, body)
			}
		}
		if isOpen(first) {
			t.Errorf("%d connections of operators are open, want %d", AdminConnections+1, AdminConnections)
		}
	})
}

func TestLargeHeadersAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, testConfig())
	large := strings.Repeat("1", 2*maxHeaderBytes)
	for name, head := range map[string]string{
		"header": "DELETE /plants/1 HTTP/1.1\r\nHost: plants.example\r\nX-Large: " + large + "\r\n\r\n",
		"path":   "DELETE /plants/" + large + " HTTP/1.1\r\nHost: plants.example\r\n\r\n",
	} {
		conn := dial(t, s.public)
		io.WriteString(conn, head)
		// The answer is that of net/http, which gets no further: plain text, without
		// X-Request-Id. It closes the connection on what it did not read.
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.StatusCode != http.StatusRequestHeaderFieldsTooLarge || !response.Close {
			t.Errorf("large %s: answer %v, %v; want 431 and Connection: close", name, response, err)
		}
	}
	if got, want := s.ask(t, del("X-Large: "+large[:maxHeaderBytes/2])).status, 204; got != want {
		t.Errorf("header of half the limit: answer %d, want %d", got, want)
	}
}
