package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/auth"
	"plantstore/internal/pgtest"
	"plantstore/internal/postgres"
)

// However many clients there are, and however few files the process may open, it
// tells its operators that it is alive, and serves whoever comes.
func TestIdleClientsLockNobodyOut(t *testing.T) {
	t.Parallel()
	const files = 256
	log := new(syncBuffer)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files),
		os.Args[0], "serve", "--database-url=host="+t.TempDir(), "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	cmd.Env, cmd.Stderr = append(os.Environ(), runMain+"=1"), log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	public, admin := (&process{log: log}).addresses(t)
	var idle []net.Conn
	for i := range 2 * files {
		conn, err := net.Dial("tcp", strings.TrimPrefix([]string{public, admin}[i%2], "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		idle = append(idle, conn)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", []string{"/nowhere", "/livez"}[i%2])
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("client %d: %v, want an answer; the log:\n%s", i, err, log)
		}
		io.Copy(io.Discard, response.Body)
	}
	for path, want := range map[string]int{admin + "/livez": 200, admin + "/metrics": 200, public + "/docs": 200} {
		if code, body := send(t, http.MethodGet, path, ""); code != want {
			t.Errorf("%s beside %d idle clients: %d %s, want %d", path, len(idle), code, body, want)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, want exit code 0", err)
	}
	for _, want := range []string{`"msg":"fewer client connections than asked for`, `"asked":16384`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%.2000s", want, log)
		}
	}
	if strings.Contains(log.String(), "too many open files") {
		t.Errorf("files ran out:\n%.2000s", log)
	}
}

func TestTooFewFiles(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -n 100 && exec "$0" "$@"`,
		os.Args[0], "serve", "--database-url=host="+t.TempDir(), "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0")
	cmd.Env = append(os.Environ(), runMain+"=1")
	out, err := cmd.CombinedOutput()
	if want := "plantstore: the process may open 100 files and needs more than "; err == nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%v, %q; want an error and %q", err, out, want)
	}
}

// distance is how far away the database is, there and back: so far that what counts
// is whose turn it is, and not how busy this machine is with other tests.
const distance = 20 * time.Millisecond

// distant returns the URL of a database that is far away.
func distant(t *testing.T, url string) string {
	t.Helper()
	return relayed(t, url, func([]byte, bool) bool {
		time.Sleep(distance / 2)
		return true
	})
}

// relayed returns the URL of a database whose traffic passes through pass, which says
// whether it arrives.
func relayed(t *testing.T, url string, pass func(bytes []byte, answer bool) bool) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	relay := func(to, from net.Conn, answers bool) {
		defer to.Close()
		for buffer := make([]byte, 64<<10); ; {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if !pass(buffer[:n], answers) {
				continue
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			network, address := pgconn.NetworkAddress(config.Host, config.Port)
			server, err := net.Dial(network, address)
			if err != nil {
				client.Close()
				continue
			}
			go relay(server, client, false)
			go relay(client, server, true)
		}
	}()
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s password='%s' dbname=%s sslmode=disable",
		l.Addr().(*net.TCPAddr).Port, config.User, config.Password, config.Database)
}

// Clients with good tokens do not suffer for a flood of made-up ones, even from
// their own address.
func TestMadeUpTokensCostThoseWhoSendThem(t *testing.T) {
	t.Parallel()
	const clients, forgers, rounds = 8, 150, 10
	database := pgtest.New(t)
	if err := postgres.Script(t.Context(), database.Owner, `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, 100000) i`); err != nil {
		t.Fatal(err)
	}
	p := start(t, "serve", "--database-url="+distant(t, database.App), "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s",
		"--token-cache-ttl=500ms", "--request-timeout=1m", "--shutdown-timeout=1m") // the machine may be busy
	public, _ := p.addresses(t)
	transport := &http.Transport{MaxIdleConnsPerHost: clients + forgers}
	defer transport.CloseIdleConnections()
	try := func(ctx context.Context, plant int64, token string) (int, string) {
		request, err := http.NewRequestWithContext(ctx, http.MethodDelete, fmt.Sprintf("%s/plants/%d", public, plant), nil)
		if err != nil {
			return 0, err.Error()
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body)
	}
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	var next, deleted atomic.Int64
	for i := range clients {
		token := createToken(t, database.Owner, fmt.Sprint("client-", i))
		group.Go(func() {
			for ctx.Err() == nil {
				if code, body := try(t.Context(), next.Add(1), token); code != http.StatusNoContent {
					t.Errorf("DELETE with a good token: %d %s, want 204", code, body)
					return
				}
				deleted.Add(1)
			}
		})
	}
	if !eventually(func() bool { return deleted.Load() > 10*clients }) {
		t.Fatal("nothing is deleted")
	}
	rate := func() int64 {
		before := deleted.Load()
		time.Sleep(50 * distance)
		return deleted.Load() - before
	}
	var ratios []float64
	for range rounds {
		alone := rate()
		flood, end := context.WithCancel(ctx)
		var forging sync.WaitGroup
		var answered atomic.Int64
		for range forgers {
			forging.Go(func() {
				for flood.Err() == nil {
					code, body := try(t.Context(), 1, auth.NewToken())
					if code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
						t.Errorf("DELETE with a made-up token: %d %s, want 401 or 429", code, body)
						return
					}
					answered.Add(1)
				}
			})
		}
		if !eventually(func() bool { return answered.Load() > forgers }) {
			t.Fatal("no made-up token is answered")
		}
		beside := rate()
		end()
		forging.Wait()
		ratios = append(ratios, float64(beside)/float64(max(alone, 1)))
		if ratios[len(ratios)-1] >= 0.4 {
			t.Logf("parts of their rate: %.2f", ratios)
			return
		}
	}
	t.Errorf("beside made-up tokens the others had these parts of their rate: %.2f; want 0.4 once in %d rounds, whatever else the machine does", ratios, rounds)
}
