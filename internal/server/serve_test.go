package server

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/plant"
)

// slowPlants takes its time for every deletion.
func slowPlants(d time.Duration) fakePlants {
	return func(context.Context, plant.Deletion) (plant.Result, error) {
		time.Sleep(d)
		return plant.Result{}, nil
	}
}

func TestShutdownIsGraceful(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.DrainDelay = 5 * time.Second
		c.Plants = slowPlants(8 * time.Second)
		s := run(t, c)
		readyz := request{method: "GET", target: "/readyz"}
		synctest.Wait()
		if a := send(t, s.admin.dial(t), readyz); a.status != 200 {
			t.Errorf("/readyz: %d %q, want 200", a.status, a.body)
		}

		asked := time.Now()
		before, during := make(chan answer, 1), make(chan answer, 1)
		conn := s.public.dial(t)
		go func() { before <- send(t, conn, del()) }()
		synctest.Wait()
		s.end()
		synctest.Wait()

		if a := send(t, s.admin.dial(t), readyz); a.status != 503 || string(a.body) != "shutting down\n" {
			t.Errorf("/readyz: %d %q, want 503 and that it is shutting down", a.status, a.body)
		}
		withBody := del("Content-Length: 2")
		withBody.target, withBody.body = "/plants/x", "{}"
		for want, quick := range map[int]request{200: {method: "GET", target: "/openapi.yaml"}, 40001: withBody} {
			if a := send(t, s.public.dial(t), quick); a.code() != want || a.header.Get("Connection") != "close" {
				t.Errorf("%s %s during the drain delay: answer %d, Connection %q; want %d, close", quick.method, quick.target, a.code(), a.header.Get("Connection"), want)
			}
		}
		conn = s.public.dial(t)
		go func() { during <- send(t, conn, del()) }()

		time.Sleep(c.DrainDelay + time.Second)
		if _, err := s.public.connect(); err == nil {
			t.Error("a connection is accepted after the drain delay, want it refused")
		}
		if a := send(t, s.admin.dial(t), request{method: "GET", target: "/livez"}); a.status != 200 {
			t.Errorf("/livez: %d while requests are in flight, want 200", a.status)
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

func TestShutdownDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.DrainDelay = time.Second
		c.RequestTimeout = time.Minute
		c.Plants = slowPlants(20 * time.Second)
		s := run(t, c)
		conn := s.public.dial(t)
		io.WriteString(conn, del().String())
		synctest.Wait()
		s.end()
		ended := time.Now()
		err := <-s.stopped
		if err == nil || !strings.Contains(err.Error(), "requests were still in flight after 10s: 1") {
			t.Errorf("Serve: %v, want an error that counts the requests in flight", err)
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

func TestShutdownWithAnUnusedConnectionIsNoError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.ShutdownTimeout = time.Second
		s := run(t, c)
		s.public.dial(t)
		synctest.Wait()
		s.end()
		if err := <-s.stopped; err != nil {
			t.Errorf("Serve: %v, want no error", err)
		}
	})
}

func TestServeReportsALostListener(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.DrainDelay = time.Hour // only when ctx ends
		s := run(t, c)
		synctest.Wait()
		lost := time.Now()
		close(s.public.broken)
		if err := <-s.stopped; err == nil || !strings.Contains(err.Error(), "serve on pipe") {
			t.Errorf("Serve: %v, want an error that names the listener", err)
		}
		if took := time.Since(lost); took > time.Second {
			t.Errorf("Serve returned after %v, want it at once", took)
		}
	})
}

// A client that says nothing, sends its body bit by bit, never reads its answer or has no
// further request loses its connection after a while.
func TestSlowClientsAreDisconnected(t *testing.T) {
	t.Parallel()
	const head = " HTTP/1.1\r\nHost: plants.example\r\n"
	for _, tt := range []struct {
		name, request string
		trickles      bool // after the request, the client sends a blank each second
		reads, admin  bool
		after         time.Duration
	}{
		{"silent client", "", false, true, false, 5 * time.Second},
		{"headers without end", "DELETE /plants/1" + head, false, true, false, 5 * time.Second},
		{"body without end", "DELETE /plants/1" + head + asAlice + "\r\nContent-Length: 4000\r\n\r\n", true, true, false, 10 * time.Second},
		{"answer not read", "GET /docs/swagger-ui-bundle.js" + head + "\r\n", true, false, false, 15 * time.Second},
		{"idle connection", "GET /openapi.yaml" + head + "\r\n", false, true, false, 2 * time.Minute},
		{"silent operator", "", false, true, true, 5 * time.Second},
		{"operator who does not read", "GET /metrics" + head + "\r\n", true, false, true, 15 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := run(t, testConfig())
				listener := s.public
				if tt.admin {
					listener = s.admin
				}
				client, start := listener.dial(t), time.Now()
				write := func() {
					_, err := io.WriteString(client, tt.request)
					for err == nil && tt.trickles {
						time.Sleep(time.Second)
						_, err = io.WriteString(client, " ")
					}
				}
				var group sync.WaitGroup
				defer group.Wait()
				if tt.reads {
					group.Go(write)
					io.Copy(io.Discard, client)
				} else {
					write()
				}
				if took := time.Since(start); took != tt.after {
					t.Errorf("the connection is closed after %s, want %s", took, tt.after)
				}
			})
		})
	}
}
